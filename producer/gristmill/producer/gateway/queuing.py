"""The way of one request from the body of a call into the queue; each route that queues one uses it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from fastapi import Request
from prometheus_client import Counter

from gristmill.producer.gateway.context import Gateway, caller_of
from gristmill.producer.gateway.creation import creating
from gristmill.producer.gateway.failover_retry import REDIS_RETRY_S, retry_redis
from gristmill.producer.gateway.request_body import declared_bytes, parsed, read_body
from gristmill.producer.tenants import Tenant
from gristmill.shared.errors import LimitReached, QueueFull
from gristmill.shared.media import names_media
from gristmill.shared.names import owned_id
from gristmill.shared.operations import max_element_bytes
from gristmill.shared.redis_full import RedisFull
from gristmill.shared.request import Request as QueuedRequest

MAY_EXIST = "the request may be queued under an id that you cannot know"

_submitted_requests = Counter(
    "gristmill_gateway_submitted_requests", "Requests that were queued", ["queue"]
)


@asynccontextmanager
async def incoming(
    call: Request,
    gateway: Gateway,
    tenant: Tenant,
    key: str | None,
    *,
    parse: Callable[[bytes], QueuedRequest],
    new_id: str,
) -> AsyncIterator[QueuedRequest]:
    """Read a call's body and yield its request, whose id names its queue, to submit it within the block.

    The call holds its share of memory until the end of the block.

    Args:
        call: The HTTP call.
        gateway: The gateway.
        tenant: The calling tenant.
        key: The Idempotency-Key, if the call has one.
        parse: Returns the request of a body.
        new_id: What the id ends with if the caller chose none.

    Raises:
        ApiError: See `read_body` and `MediaGuard.check`.
        InvalidRequest: The body or a media URL breaks a rule.
        LimitReached: The tenant would exceed `max_depth` or `max_bytes`, or used up a token budget.
    """
    max_bytes = max_element_bytes(gateway.settings.max_request_bytes)
    declared = declared_bytes(call)
    is_checked = bool(declared) and gateway.models.is_single
    if is_checked:
        await _check_load(gateway, tenant, owned_id(tenant.name, key or new_id), declared)
    with gateway.body_pools.share(caller_of(call, tenant)) as share:
        body = await read_body(call, share, max_bytes, "GRISTMILL_MAX_REQUEST_BYTES")
        request = await parsed(partial(parse, body), len(body), gateway.parsing)
        is_named = not request.id.endswith(new_id)
        request = await gateway.models.addressed(request, is_named=is_named)
        call.state.call.facts |= {
            "id": request.id,
            "queue": gateway.models.of_id(request.id).name,
        }
        if names_media(request):
            await gateway.media.check(request)
        if not is_checked:
            await _check_load(gateway, tenant, request.id, len(body))
        yield request


async def submit(gateway: Gateway, request: QueuedRequest, *, is_repeatable: bool) -> None:
    """Submit a request, for `REDIS_RETRY_S` at most from its turn on. `Client` alone would wait without a limit.

    Args:
        gateway: The gateway.
        request: The request.
        is_repeatable: True if a repeated call queues nothing twice, because it has a key or an id.

    Raises:
        ApiError: 503: Redis failed, and a repeat might queue the request twice.
        IdConflict, NotServed, InvalidRequest, QueueFull: See `Client.submit`.
    """
    served = gateway.models.of_id(request.id)
    with creating(MAY_EXIST, is_repeatable=is_repeatable):
        try:
            async with gateway.submitting, asyncio.timeout(REDIS_RETRY_S):
                await gateway.models.check(request)
                await served.client.submit(request, wait_if_full=False)
        except QueueFull as full:  # a full Redis is the operator's, a 503
            raise full.__cause__ if isinstance(full.__cause__, RedisFull) else full from None
        except TimeoutError:
            raise ConnectionError(f"no answer to a submit within {REDIS_RETRY_S:g} s") from None
    _submitted_requests.labels(served.name).inc()


async def _check_load(gateway: Gateway, tenant: Tenant, request_id: str, num_bytes: int) -> None:
    """Check that a request stays within the tenant's limits; one that the queue has already adds nothing.

    Raises:
        LimitReached: The tenant would exceed `max_depth` or `max_bytes`, or used up a token budget.
    """
    served = gateway.models.of_id(request_id)
    try:
        await retry_redis(gateway.batches.store.budgets.check, tenant)
        await served.limits.check_load(tenant, num_bytes)
    except LimitReached:
        ((state, _),) = await retry_redis(served.queue.status, [request_id])
        if state == "unknown":
            raise

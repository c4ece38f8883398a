"""Calls that create something: their Idempotency-Key, and whether a caller may repeat one that failed."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Annotated

import structlog
from fastapi import Header
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gristmill.producer.gateway.http_errors import NO_RETRY, ApiError, api_error
from gristmill.shared.errors import NotReplicated
from gristmill.shared.names import NAME, is_match, owned_id

log = structlog.get_logger()

IdempotencyKey = Annotated[
    str | None,
    Header(min_length=1, max_length=128, description="repeats with the same key create nothing"),
]
"""The header of a call, as an argument of a route."""


DIGEST_BYTES = 16
"""Bytes of the digest of a key that no id may hold; two keys of a tenant then never meet."""


def name_of_key(tenant: str, key: str | None) -> str | None:
    """Return the name of a request within its tenant: its key, or a digest of a key that no id may hold.

    Args:
        tenant: Name of the tenant, with which the id of the request begins.
        key: The Idempotency-Key; None for a call without one, which has no such name.
    """
    if key is None or is_match(NAME, owned_id(tenant, key)):
        return key
    return f"key-{blake2b(key.encode(), digest_size=DIGEST_BYTES).hexdigest()}"


UNSURE = (RedisConnectionError, RedisTimeoutError, ConnectionError, NotReplicated)
"""Errors after which nobody knows whether Redis did what was asked. What it refuses is not done."""


@contextmanager
def creating(what: str, *, is_repeatable: bool) -> Iterator[None]:
    """Say `x-should-retry: false` if Redis failed while something was created, and a repeat would create another.

    Args:
        what: What may exist now, and how the caller finds out.
        is_repeatable: True if a repeat creates nothing twice, because the call has a key or an id.

    Raises:
        ApiError: 503, in place of the error of Redis.
    """
    try:
        yield
    except UNSURE as error:
        if is_repeatable:
            raise
        log.warning("call.not_served", error=repr(error)[:500])
        found = api_error(error)
        message = f"{found.message.partition(';')[0]}; {what}; send an Idempotency-Key, and a call can be repeated"
        raise ApiError(found.status, message, code=found.code, headers=NO_RETRY) from error

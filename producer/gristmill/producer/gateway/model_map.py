"""The map from models to queues: which queue takes a request, and which has the request of an id.

A model's queue is the one that the operator declared for it, else the first whose live workers serve it. The id of a
request ends with `@<queue>`, unless its queue is the gateway's own, the first.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import RedisError

from gristmill.producer.client import Client
from gristmill.producer.gateway.failover_retry import REDIS_RETRY_S, retry_redis
from gristmill.producer.gateway.stream_reader import StreamReader
from gristmill.producer.gateway.tenant_limits import TenantLimiter
from gristmill.shared.errors import NotServed
from gristmill.shared.fleet import ALL_MODELS, Fleet, queue_serving
from gristmill.shared.fleet_cache import FleetCache, read_fleet
from gristmill.shared.keys import DirectoryKeys
from gristmill.shared.queue import Queue
from gristmill.shared.request import Request

NOTE_TTL_S = 24 * 3600
"""Seconds for which a note of a named request outlives the longest life of a result; most requests end within a day."""


@dataclass(frozen=True, slots=True)
class ServedQueue:
    """One queue behind a gateway.

    Attributes:
        queue: The queue.
        client: Submits requests and waits for their results. It does not check models; `ModelMap.check` does.
        limits: The limits of each tenant in this queue.
        streams: Reads the events of its streamed requests.
        fleet: What its live workers serve, at most 5 s old.
    """

    queue: Queue
    client: Client
    limits: TenantLimiter
    streams: StreamReader
    fleet: FleetCache

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self.queue.keys.queue

    async def lack_of_workers(self) -> str:
        """Return words that say so if no worker of the queue lives; "" also if Redis does not answer."""
        with suppress(RedisError, OSError):
            leases = (await retry_redis(self.queue.stats)).workers
            if all(remaining_ms <= 0 for remaining_ms in leases.values()):
                return f": no worker of queue {self.name} lives"
        return ""


class ModelMap:
    """The queues behind a gateway, by model and by id.

    Args:
        queues: The queues; the first takes files, batches, and requests without a model.
        declared: Model -> name of one of the queues, for models that may have no worker.
        check_models: True refuses a request that no live worker of its queue serves, unless its model is declared.
    """

    def __init__(
        self, queues: Sequence[ServedQueue], declared: Mapping[str, str], *, check_models: bool
    ) -> None:
        self._queues = {each.name: each for each in queues}
        self._first = queues[0]
        self._declared = declared
        self._check_models = check_models
        self._redis: Any = self._first.queue.redis
        self._keys = DirectoryKeys()

    @property
    def queues(self) -> Sequence[ServedQueue]:
        """All queues, the first first."""
        return list(self._queues.values())

    @property
    def is_single(self) -> bool:
        """True if there is one queue, so that every request goes there."""
        return len(self._queues) == 1

    def of_id(self, request_id: str) -> ServedQueue:
        """Return the queue that an id names; the first for an id that names none of them."""
        _, mark, name = request_id.rpartition("@")
        return self._queues.get(name, self._first) if mark else self._first

    async def addressed(self, request: Request, *, is_named: bool) -> Request:
        """Return a request with the id that names its queue.

        Args:
            request: A request whose id names no queue yet.
            is_named: True if the caller chose the id. Its queue is noted in the directory, so that a repeated call
                finds the request after the map has changed.

        Raises:
            InvalidRequest: The id is too long with the name of the queue.
            ConnectionError: Redis does not answer in time.
        """
        if self.is_single:
            return request
        name = (await self._of_model(request.model)).name
        if is_named:
            name = await self._noted(request.id, name)
        served = self._queues.get(name, self._first)
        is_plain = served is self._first and self.of_id(request.id) is self._first
        return request if is_plain else replace(request, id=f"{request.id}@{served.name}")

    async def check(self, request: Request) -> None:
        """Check that some worker serves a request, unless its model is declared or its queue has no workers.

        Raises:
            NotServed: No worker of its queue serves it. A note of its queue is dropped: a repeat may find another.
        """
        if not self._check_models or request.model in self._declared:
            return
        try:
            await self.of_id(request.id).fleet.check([request])
        except NotServed as refusal:
            if self.is_single:
                raise
            name = self.of_id(request.id).name
            key = self._keys.request_queue(request.id.removesuffix(f"@{name}"))
            await retry_redis(self._redis.unlink, key)
            reason = f"{refusal.reason}. {ALL_MODELS}"
            raise NotServed(reason, refusal.code, request_id=request.id) from None

    async def models(self) -> Mapping[str, int]:
        """Return each model, adapters included -> prompt and output tokens; 0 if no worker says."""
        found = dict.fromkeys(self._declared, 0)
        for fleet in await self._fleets_now():
            found |= {name: max(n, found.get(name, 0)) for name, n in fleet.max_model_len.items()}
        return found

    async def _of_model(self, model: str) -> ServedQueue:
        """Return the queue of a model. One that no queue knows goes to the first, which refuses it or lets it wait."""
        if declared := self._declared.get(model):
            return self._queues[declared]
        if not model:
            return self._first
        try:
            async with asyncio.timeout(REDIS_RETRY_S):
                fleets = await asyncio.gather(*(each.fleet.fleet() for each in self.queues))
        except TimeoutError:
            raise ConnectionError(f"no answer of Redis within {REDIS_RETRY_S:g} s") from None
        name = queue_serving(fleets, model) or queue_serving(await self._fleets_now(), model)
        return self._queues[name] if name else self._first

    async def _fleets_now(self) -> Sequence[Fleet]:
        return await asyncio.gather(*(retry_redis(read_fleet, each.queue) for each in self.queues))

    async def _noted(self, request_id: str, name: str) -> str:
        """Return the queue that was noted for an id, or note this one.

        A gateway that served the first queue alone has noted nothing, so the first queue may have the id.
        """
        key = self._keys.request_queue(request_id)
        if noted := await retry_redis(self._redis.get, key):
            return str(noted.decode())
        ((state, _),) = await retry_redis(self._first.queue.status, [request_id])
        name = name if state == "unknown" else self._first.name
        ttl_s = NOTE_TTL_S + self._first.queue.limits.result_ttl_ms // 1000
        if await retry_redis(self._redis.set, key, name, nx=True, ex=ttl_s):
            return name
        noted = await retry_redis(self._redis.get, key)
        return noted.decode() if noted else name

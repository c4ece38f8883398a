"""Read and set how tenants share one queue: the weight of each, and its load in the queue now.

The CLI and the gateway use it as `queue.tenants`.
"""

from collections.abc import Mapping
from typing import Any

from gristmill.shared.errors import InvalidRequest
from gristmill.shared.keys import Keys
from gristmill.shared.names import check_tenant
from gristmill.shared.redis_types import AnyRedis

MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000
"""Bounds of a tenant's weight; `lua/includes/tenants.lua` has the same."""


class TenantShares:
    """The tenants of one queue.

    Args:
        redis: The queue's client.
        keys: The queue's keys.
    """

    def __init__(self, redis: AnyRedis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def weights(self) -> dict[str, float]:
        """Return the weights of tenants, bounded as in claims; a missing tenant has 1."""
        found: Any = await self._redis.hgetall(self._keys.tenant_weights)
        return {name.decode(errors="replace"): _weight(text) for name, text in found.items()}

    async def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set how tenants share the engine under fair scheduling; requests may already wait.

        New weights apply to later claims. A tenant that got more than its new share first waits for
        the others.

        Args:
            weights: Tenant -> weight, 0.001 to 1000; other tenants keep theirs. A weight of 1 is deleted, as 1
                is the default.

        Raises:
            InvalidRequest: A name or a weight is not allowed; no weight has changed then.
        """
        for name, weight in weights.items():
            check_tenant(name)
            if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
                raise InvalidRequest(
                    f"tenant {name}: weight {weight:g} is not allowed; use {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"
                )
        others: dict[Any, Any] = {name: weight for name, weight in weights.items() if weight != 1}
        if others:
            await self._redis.hset(self._keys.tenant_weights, mapping=others)
        if equal := [name for name in weights if name not in others]:
            await self._redis.hdel(self._keys.tenant_weights, *equal)

    async def load(self, tenant: str) -> tuple[int, int]:
        """Return how many requests of a tenant are not terminal, and the bytes of their records."""
        fields = [f"{tenant}|requests", f"{tenant}|bytes"]
        requests, num_bytes = await self._redis.hmget(self._keys.tenant_load, fields)
        return int(requests or 0), int(num_bytes or 0)

    async def names(self) -> set[str]:
        """Return the tenants that have requests which are not terminal."""
        fields: Any = await self._redis.hkeys(self._keys.tenant_load)
        return {field.decode(errors="replace").rpartition("|")[0] for field in fields}


def _weight(text: bytes) -> float:
    """Read a weight as `lua/includes/tenants.lua` does; `set_weights` may not have set it."""
    try:
        weight = float(text)
    except ValueError:
        return 1.0
    return max(MIN_WEIGHT, min(weight, MAX_WEIGHT)) if weight > 0 else 1.0

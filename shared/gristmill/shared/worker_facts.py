"""Read fields of `worker:<worker>` of many workers; the fleet, the brakes and the forecast use it."""

from collections.abc import Iterable, Sequence
from typing import Any

from gristmill.shared.keys import Keys


async def read_facts(
    redis: Any, keys: Keys, workers: Iterable[str], fields: Sequence[str]
) -> dict[str, list[bytes | None]]:
    """Return the fields of each worker, None for a field that it lacks.

    All go over one connection. A call for each worker at the same time would open a connection for each, and a fleet
    in which every worker does so would need more than Redis accepts.
    """
    names = list(workers)
    if not names:
        return {}
    async with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hmget(keys.worker(name), fields)
        return dict(zip(names, await pipeline.execute(), strict=True))

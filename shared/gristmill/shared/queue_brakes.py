"""Write and read which workers of a queue are braked."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import orjson

from gristmill.shared.brakes import FIELD, Brake
from gristmill.shared.keys import Keys
from gristmill.shared.worker_facts import read_facts


async def write_brake(
    redis: Any, keys: Keys, worker: str, brake: Brake | None, *, now_ms: int, lease_ms: int
) -> None:
    """Write that a worker is braked, or that it no longer is.

    Args:
        redis: Client of the queue.
        keys: Keys of the queue.
        worker: A registered worker.
        brake: Why it is braked; None if it is not.
        now_ms: Redis time.
        lease_ms: Lease of the queue's workers.
    """
    key = keys.worker(worker)
    if brake is None:
        await redis.hdel(key, FIELD)
        return
    note = orjson.dumps(asdict(brake) | {"at_ms": now_ms})
    # Both in one step: the lease may have ended, and a key of a dead worker must not stay for ever.
    await (
        redis.pipeline(transaction=True).hset(key, FIELD, note).pexpire(key, lease_ms * 4).execute()
    )


async def read_brakes(redis: Any, keys: Keys, workers: Iterable[str]) -> dict[str, Brake]:
    """Return those of the workers that are braked, and why."""
    facts = await read_facts(redis, keys, workers, [FIELD])
    return {worker: Brake.parse(note) for worker, (note,) in facts.items() if note}

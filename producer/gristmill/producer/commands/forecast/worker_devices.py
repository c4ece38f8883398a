"""The devices of the workers of a queue."""

import asyncio
from typing import Any

from gristmill.shared.queue import Queue


async def read_devices(queue: Queue) -> tuple[dict[str, int], bool]:
    """Return the devices of each live worker, 1 if it does not say, and True if they are GPUs."""
    redis: Any = queue.redis
    leases = (await queue.stats()).workers
    live = [worker for worker, left_ms in leases.items() if left_ms > 0]
    facts = await asyncio.gather(
        *(redis.hmget(queue.keys.worker(worker), ["num_devices", "device"]) for worker in live)
    )
    numbers = {
        worker: int(number) if number and number.isdigit() and int(number) else 1
        for worker, (number, _) in zip(live, facts, strict=True)
    }
    kinds = {kind for _, kind in facts if kind}
    return numbers, bool(kinds) and b"cpu" not in kinds

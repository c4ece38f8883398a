"""The devices of the workers of a queue."""

from gristmill.shared.queue import Queue
from gristmill.shared.worker_facts import number_of, read_facts


async def read_devices(queue: Queue) -> tuple[dict[str, int], bool]:
    """Return the devices of each live worker, 1 if it does not say, and True if they are GPUs."""
    leases = (await queue.stats()).workers
    live = [worker for worker, left_ms in leases.items() if left_ms > 0]
    facts = await read_facts(queue.redis, queue.keys, live, ["num_devices", "device"])
    numbers = {worker: number_of(number) or 1 for worker, (number, _) in facts.items()}
    kinds = {kind for _, kind in facts.values() if kind}
    return numbers, bool(kinds) and b"cpu" not in kinds

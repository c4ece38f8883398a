"""Show which workers are braked: their engine fails everything, so they only try single requests.

A worker writes the fact into the field `braked` of `worker:<worker>`, and `gristmill queue stats` reads it.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

import orjson

from gristmill.shared.queue import Queue

FIELD = "braked"
"""Field of the HASH `worker:<worker>`; it exists while the worker is braked."""


@dataclass(frozen=True, slots=True)
class Brake:
    """Why a worker is braked.

    Attributes:
        kind: Kind of the failures, such as `5xx InternalServerError`.
        num_failed: Requests that failed with this kind before the worker stopped claiming.
        num_outcomes: Requests that ended in that time.
        message: Beginning of the engine's last error message; empty for a 4xx, which may quote the request.
        example_id: Id of the last of these requests.
    """

    kind: str
    num_failed: int
    num_outcomes: int
    message: str
    example_id: str

    def in_words(self) -> str:
        """Return the reason for people, in one line."""
        message = f": {self.message}" if self.message else ""
        return (
            f"{self.num_failed} of the last {self.num_outcomes} requests failed with {self.kind}{message}"
            f" (such as {self.example_id}); it tries single requests"
        )


async def write_brake(queue: Queue, worker: str, brake: Brake | None, now_ms: int) -> None:
    """Write that a worker is braked, or delete the fact.

    Args:
        queue: The queue.
        worker: A registered worker.
        brake: Why it is braked; None if it is not.
        now_ms: Redis time.
    """
    redis: Any = queue.redis
    key = queue.keys.worker(worker)
    if brake is None:
        await redis.hdel(key, FIELD)
        return
    await redis.hset(key, FIELD, orjson.dumps(asdict(brake) | {"at_ms": now_ms}))
    await redis.pexpire(key, queue.limits.lease_ms * 4)  # the lease may have ended in between


async def read_brakes(queue: Queue, workers: Iterable[str]) -> dict[str, Brake]:
    """Return those of the workers that are braked, and why."""
    redis: Any = queue.redis
    brakes = {}
    for worker in workers:
        if note := await redis.hget(queue.keys.worker(worker), FIELD):
            known = orjson.loads(note)
            brakes[worker] = Brake(**{field.name: known[field.name] for field in fields(Brake)})
    return brakes

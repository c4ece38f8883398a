"""Drive queues with this tree's code, step by step: one JSON array a line in, one JSON value a line out.

The test of two versions runs this file of the released version beside the current code, on one queue. The test talks to
every version in these lines, so their meaning never changes. A version that renames something in `Queue` changes this file
with it.
"""

import asyncio
import os
import sys
from typing import Any

import orjson
from queues import ERROR, a_request, claim, die, settlement

import gristmill.shared.queue
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.pauses import WHOLE_QUEUE
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.shared.redis_types import AnyRedis
from gristmill.shared.results import Result
from gristmill.shared.scripts import PROTOCOL


class Driver:
    """Producers and workers of a queue. A method is a verb; its arguments follow the verb in the line."""

    def __init__(self, redis: AnyRedis) -> None:
        self._redis = redis

    async def use(self, queue: str) -> None:
        """Open a queue for the steps that follow."""
        self._queue = Queue(self._redis, queue)
        self._claimed: dict[str, Claimed] = {}

    async def version(self) -> list[str]:
        """Return the protocol's version, and the file that the code comes from."""
        return [PROTOCOL, gristmill.shared.queue.__file__]

    async def submit(self, *requests: dict[str, Any]) -> list[str]:
        """Submit requests, given as fields of `Request`; return a code for each."""
        return [*await self._queue.submit([a_request(**fields) for fields in requests])]

    async def register(self, worker: str) -> None:
        """Give a worker its lease."""
        await self._queue.register(worker, {"model": "m", "protocol": PROTOCOL})

    async def claim(self, worker: str, *understands: str) -> list[list[Any]]:
        """Claim all that a worker may have; return id, attempt, tenant and facts of each."""
        items = await claim(self._queue, worker, max_suspects=9, understands=understands)
        self._claimed |= {item.id: item for item in items}
        return [[item.id, item.attempt, item.record.tenant, item.record.facts] for item in items]

    async def ack(self, worker: str, request_id: str, status: str) -> int:
        """Settle what this driver claimed; return the code of `Queue.ack`."""
        (taken,) = await self._queue.ack(worker, [settlement(self._claimed[request_id], status)])
        return taken

    async def nack(self, worker: str, request_id: str) -> str:
        """Let an attempt fail; return what became of the request."""
        return await self._queue.nack(worker, self._claimed[request_id], 0, ERROR)

    async def release(self, worker: str, *ids: str) -> int:
        """Hand requests back; return how many were held."""
        return await self._queue.release(worker, [self._claimed[name] for name in ids])

    async def crash(self, worker: str) -> None:
        """Return all that a worker holds, as after the death of its engine."""
        await self._queue.crash(worker, {})

    async def aborted(self, worker: str) -> list[str]:
        """Return the ids that a worker must stop, by its next beat."""
        return sorted((await self._queue.beat(worker)).abort)

    async def reap(self, worker: str) -> None:
        """End a worker's lease and reap it."""
        await die(self._queue, worker)

    async def cancel(self, *ids: str) -> list[str]:
        """Cancel requests; return what each was."""
        return await self._queue.cancel(ids)

    async def requeue(self, dead: str, new: str) -> str:
        """Submit a dead letter again under a new id."""
        return await self._queue.dead_letters.requeue(dead, new)

    async def pause(self, reason: str) -> None:
        """Pause the queue."""
        await self._queue.pauses.pause(WHOLE_QUEUE, "driver", reason)

    async def resume(self) -> None:
        """Resume the queue."""
        await self._queue.pauses.resume(WHOLE_QUEUE)

    async def results(self, *ids: str) -> list[list[Any] | None]:
        """Return status, attempt, tenant and error code of each result, None if there is none."""
        return [_outline(result) for result in await self._queue.results(ids)]

    async def counts(self) -> dict[str, int]:
        """Return the counters that are not 0."""
        counters = (await self._queue.stats()).counters
        return {name: value for name, value in counters.items() if value}

    async def findings(self) -> list[str]:
        """Return what the audit finds."""
        return [f"{finding.kind} {finding.subject}" for finding in await audit(self._queue)]


def _outline(result: Result | None) -> list[Any] | None:
    if result is None:
        return None
    return [result.status, result.attempt, result.tenant, (result.error or {}).get("code")]


async def main() -> None:
    """Answer each line of the standard input."""
    redis = connect(os.environ["REDIS_URL"])
    driver = Driver(redis)
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        verb, *arguments = orjson.loads(line)
        answer = await getattr(driver, verb)(*arguments)
        sys.stdout.buffer.write(orjson.dumps(answer) + b"\n")
        sys.stdout.buffer.flush()
    await redis.aclose()


if __name__ == "__main__":
    asyncio.run(main())

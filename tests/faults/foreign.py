"""Somebody else writes to the keys of a queue: byte bombs, keys of a wrong type, ended leases."""

import asyncio
import contextlib

from queues import end_lease, reap_all
from redis.exceptions import ResponseError

from gristmill.shared.audit import audit
from gristmill.shared.key_types import TYPES
from gristmill.shared.queue import Queue

BOMBS = {1_500_000: "too_large", 250_000: "too_large", 100_000: "unreadable"}
"""Sizes of elements -> their end, under `SMALL_LIMITS`: one is kept by its beginning only, one reaches a worker."""

KINDS = (
    "delayed", "deadlines", "owner", "attempts", "workers", "pauses", "scheduling", "virtual_time", "tenant_load",
    "tenant_weights", "tenant_output_shares", "prefix_groups", "dead_letters", "dead_letter_info", "stats", "times",
    "pace",
)  # fmt: skip
"""Names of keys to which a LIST does not belong."""

NUM_LOSSES = 3
"""Losses of a lease in a row; a worker stops claiming at the third."""

LOSS_PAUSE_S = 0.2
"""Longer than a heartbeat of the suite, so that the worker has a new lease."""


class Foreign:
    """Writes to a queue past its verbs, and knows what must have become of it.

    Args:
        queue: The queue.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._num_bombs = 0
        self._pushed: set[str] = set()

    async def throw_bombs(self) -> None:
        """Push large elements to the inbox."""
        for size in BOMBS:
            await self._queue.redis.rpush(self._queue.keys.inbox, b"x" * size)
        self._num_bombs += 1

    async def push_to_keys(self) -> None:
        """Push to each key; where it exists, Redis refuses that."""
        for name in KINDS:
            assert TYPES[name] != "list"
            with contextlib.suppress(ResponseError):
                await self._queue.redis.rpush(self._queue.keys.of_kind(name, ""), "x")
                self._pushed.add(name)

    async def end_leases(self, pid: int) -> None:
        """Let a worker lose its lease again and again."""
        for _ in range(NUM_LOSSES):
            for worker in (await self._queue.stats()).workers:
                key = self._queue.keys.worker(worker)
                if await self._queue.redis.hget(key, "pid") == str(pid).encode():
                    await end_lease(self._queue, worker)
                    await reap_all(self._queue)
            await asyncio.sleep(LOSS_PAUSE_S)

    async def check(self) -> None:
        """Check that each element is a dead letter of its kind, and that the audit names each key; delete these keys."""
        letters = await self._queue.dead_letters.newest(0, 1000)
        # A worker that loses its lease while it reads a bomb alone proves, as far as the queue knows, that the bomb kills.
        reasons = sorted(
            letter.reason.replace("engine_killed", "unreadable")
            for letter in letters
            if letter.id.startswith("inbox-")
        )
        assert reasons == sorted([*BOMBS.values()] * self._num_bombs)
        assert await self._deleted_keys() == self._pushed

    async def _deleted_keys(self) -> set[str]:
        keys, names = self._queue.keys, set[str]()
        while findings := [each for each in await audit(self._queue) if each.kind == "wrong_type"]:
            for subject in (finding.subject for finding in findings):
                name = subject.removeprefix(keys.prefix)
                names.add(name)
                await self._queue.redis.delete(
                    keys.wrong_type(name) if name == subject else subject
                )
        await self._queue.redis.delete(keys.wrong_types)
        return names

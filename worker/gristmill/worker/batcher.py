"""What starts next: rounds of claims over the queues of a worker, until the policy closes the batch.

The loop calls `gather` again and again. There is one room, the engine's (`admission.py`); in a round the
queue that is owed most is asked first (`shares.py`), and what it leaves goes to the next.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gristmill.shared.operations import Claim
from gristmill.shared.records import Claimed, Record
from gristmill.shared.tasks import end
from gristmill.worker import batch_policy, metrics
from gristmill.worker.admission.room import Admission, Room
from gristmill.worker.in_flight import Running
from gristmill.worker.queue_source import Feed
from gristmill.worker.queue_turns import Shares
from gristmill.worker.settings import WorkerSettings

LOOK_AGAIN_S = 0.05
"""Wait for room: the engine moves between two ends of requests, and its counters lag a step behind them."""


class Item(NamedTuple):
    """A claimed request and the queue that it came from."""

    feed: Feed
    claimed: Claimed

    @property
    def record(self) -> Record:
        """What was submitted."""
        return self.claimed.record


class Gatherer:
    """Gathers batches for one engine.

    Args:
        feeds: The queues.
        policy: When to claim and how much.
        settings: Limits of a claim, and how long to wait.
        running: What the engine runs.
        admission: What it has room for.
        is_stopping: Whether to claim nothing more.
    """

    def __init__(
        self,
        feeds: Sequence[Feed],
        policy: batch_policy.BatchPolicy,
        settings: WorkerSettings,
        *,
        running: Running,
        admission: Admission,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._feeds = feeds
        self._policy = policy
        self._settings = settings
        self._running = running
        self._admission = admission
        self._is_stopping = is_stopping
        self._shares = Shares([feed.weight for feed in feeds])

    async def gather(self) -> list[Item]:
        """Claim until the policy closes the batch; empty when stopping."""
        gathered: list[Item] = []
        opened_at = time.monotonic()
        while not self._is_stopping():
            num_before = len(gathered)
            claims = await self._claim(gathered)
            if not claims:
                await self._wait_for_room()
                continue
            if not num_before:
                opened_at = time.monotonic()
            reason = batch_policy.close_reason(
                self._policy,
                running=self._running.num_requests,
                gathered=len(gathered),
                got=len(gathered) - num_before,
                waited_s=time.monotonic() - opened_at,
                has_room=any(self._room(feed, gathered).num_requests for feed in self._feeds),
            )
            if reason:
                metrics.claims.labels(reason).inc()
                return gathered
            if len(gathered) == num_before:
                await self._wait_for_work(claims, opened_at if gathered else None)
        if gathered:  # it is held, and released by the drain
            metrics.claims.labels("stopping").inc()
        return []

    async def wait_for_change(
        self, doorbells: Sequence[Feed] = (), doorbell_s: float = 0.0
    ) -> None:
        """Wait until a request ends or one of the doorbells rings, which are heard for a time.

        What has changed since the last wait ends this one at once: it may have been too late for the look
        that came before it.
        """
        if self._is_stopping():
            return
        waits: set[asyncio.Task[object]] = {asyncio.create_task(self._running.changed.wait())}
        waits |= {asyncio.create_task(feed.claimer.hear_doorbell(doorbell_s)) for feed in doorbells}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            self._running.changed.clear()
        finally:
            await end(*waits)

    async def _claim(self, gathered: list[Item]) -> dict[Feed, Claim]:
        """Ask the queues in turn until one has something, and gather; returns the answers of those asked.

        Whose turn it is next depends on what that one got. For want of room, or in a pause, a queue is not asked.
        """
        claims = {}
        for place in self._shares.order():
            feed = self._feeds[place]
            await feed.settle_doubt()
            if claim := await self._claim_from(feed, gathered):
                claims[feed] = claim
                got = [Item(feed, claimed) for claimed in claim.claimed]
                gathered.extend(got)
                self._shares.charge(place, sum(map(_tokens, got)))
                if got:
                    break
        return claims

    async def _claim_from(self, feed: Feed, gathered: Sequence[Item]) -> Claim | None:
        room = self._room(feed, gathered)
        size = batch_policy.claim_size(
            self._policy,
            running=self._running.num_requests,
            gathered=len(gathered),
            room=room,
            demand=feed.claimer.demand,
        )
        size = feed.claimer.granted(size)
        if size == 0:
            return None
        max_tokens = batch_policy.claim_tokens(self._policy, room, self._settings.max_claim_tokens)
        return await feed.claim(size, max_tokens, self._suspect_width_of(feed))

    def _room(self, feed: Feed, gathered: Sequence[Item]) -> Room:
        return self._admission.room([item.record for item in gathered], feed.claimer.demand)

    def _suspect_width_of(self, feed: Feed) -> int:
        """Suspects run from one queue at a time.

        The verdict over a death looks at one queue alone, and must know every suspect that ran.
        """
        others = (other for other in self._feeds if other is not feed)
        return 0 if any(other.held.suspects for other in others) else self._running.suspect_width

    async def _wait_for_room(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S):
                await self.wait_for_change()

    async def _wait_for_work(self, claims: Mapping[Feed, Claim], opened_at: float | None) -> None:
        """Wait for a doorbell, the next delayed request, the batch's timeout or a change here."""
        if any(claim.inbox for claim in claims.values()):
            return
        timeout_s = self._settings.poll_interval_s
        for claim in claims.values():
            if claim.next_due_ms is not None:
                timeout_s = min(timeout_s, (claim.next_due_ms - claim.now_ms) / 1000)
        if opened_at is not None:
            timeout_s = min(timeout_s, opened_at + self._policy.timeout_s - time.monotonic())
        if timeout_s > 0:
            await self.wait_for_change(list(claims), timeout_s)


def _tokens(item: Item) -> int:
    """Return the estimated length of a request, prompt and output."""
    return item.record.prompt_tokens + item.record.max_tokens

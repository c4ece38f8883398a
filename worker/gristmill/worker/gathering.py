"""What starts next: rounds of claims over the queues of a worker, until the policy closes the batch.

The loop calls `gather` again and again. There is one room, the engine's; in a round the queue that is owed
most is asked first (`shares.py`), and what it leaves goes to the next.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gristmill.shared.operations import Claim
from gristmill.shared.records import Claimed, Record
from gristmill.shared.tasks import end
from gristmill.worker import batching, metrics
from gristmill.worker.feed import Feed
from gristmill.worker.held import Load
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.shares import Shares


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
        settings: How long to wait.
        load: What the engine runs.
        is_stopping: Whether to claim nothing more.
    """

    def __init__(
        self,
        feeds: Sequence[Feed],
        policy: batching.BatchPolicy,
        settings: WorkerSettings,
        load: Load,
        *,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._feeds = feeds
        self._policy = policy
        self._settings = settings
        self._load = load
        self._is_stopping = is_stopping
        self._shares = Shares([feed.weight for feed in feeds])

    async def gather(self) -> list[Item]:
        """Claim until the policy closes the batch; empty when stopping."""
        gathered: list[Item] = []
        opened_at = time.monotonic()
        while not self._is_stopping():
            room = batching.claim_size(self._policy, self._load.num_running, len(gathered))
            claims = await self._claim(room)
            if not claims:
                await self.wait_for_change()
                continue
            if not gathered:
                opened_at = time.monotonic()
            got = [Item(feed, claimed) for feed, claim in claims for claimed in claim.claimed]
            gathered.extend(got)
            reason = batching.close_reason(
                self._policy,
                running=self._load.num_running,
                gathered=len(gathered),
                got=len(got),
                waited_s=time.monotonic() - opened_at,
            )
            if reason:
                metrics.claims.labels(reason).inc()
                return gathered
            await self._wait_for_work(claims, opened_at if gathered else None)
        return []  # what was gathered is held, and released by the drain

    async def wait_for_change(
        self, doorbells: Sequence[Feed] = (), doorbell_s: float = 0.0
    ) -> None:
        """Wait until a request ends or one of the doorbells rings, which are heard for a time."""
        self._load.changed.clear()
        if self._is_stopping():
            return
        waits: set[asyncio.Task[object]] = {asyncio.create_task(self._load.changed.wait())}
        waits |= {asyncio.create_task(feed.claimer.hear_doorbell(doorbell_s)) for feed in doorbells}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*waits)

    async def _claim(self, room: int) -> list[tuple[Feed, Claim]]:
        """Ask the queues in turn until the room is used; returns the answers of those asked."""
        claims = []
        for place in self._shares.order():
            feed = self._feeds[place]
            await feed.settle_doubt()
            granted = feed.claimer.granted(room)
            if granted == 0:
                continue
            claim = await feed.claim(granted, self._suspect_width_of(feed))
            claims.append((feed, claim))
            self._shares.charge(place, _tokens(claim))
            room -= len(claim.claimed)
        return claims

    def _suspect_width_of(self, feed: Feed) -> int:
        """Suspects run from one queue at a time.

        The verdict over a death looks at one queue alone, and must know every suspect that ran.
        """
        others = (other for other in self._feeds if other is not feed)
        return 0 if any(other.held.suspects for other in others) else self._load.suspect_width

    async def _wait_for_work(
        self, claims: Sequence[tuple[Feed, Claim]], opened_at: float | None
    ) -> None:
        """Wait for a doorbell, the next delayed request, the batch's timeout or a change here."""
        if any(claim.inbox for _, claim in claims):
            return
        timeout_s = self._settings.poll_interval_s
        for _, claim in claims:
            if claim.next_due_ms is not None:
                timeout_s = min(timeout_s, (claim.next_due_ms - claim.now_ms) / 1000)
        if opened_at is not None:
            timeout_s = min(timeout_s, opened_at + self._policy.timeout_s - time.monotonic())
        if timeout_s > 0:
            await self.wait_for_change([feed for feed, _ in claims], timeout_s)


def _tokens(claim: Claim) -> int:
    """Estimated tokens of what was claimed."""
    records = (claimed.record for claimed in claim.claimed)
    return sum(record.prompt_tokens + record.max_tokens for record in records)

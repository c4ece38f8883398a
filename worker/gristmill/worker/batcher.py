"""Gather the next batch: claim from a worker's queues in rounds, until the policy closes it.

The loop calls `next_batch` repeatedly. All queues share the engine's room (`admission/room.py`).
Each round first asks the queue that is furthest behind its share (`queue_shares.py`). If that queue
is empty, the round asks the next one.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from gristmill.shared.operations import MAX_CLAIM_BYTES
from gristmill.shared.tasks import end
from gristmill.worker import batch_policy, metrics
from gristmill.worker.admission.capacity import Demand
from gristmill.worker.admission.room import NO_ROOM, Room, RoomKind
from gristmill.worker.admission.urgent import UrgentClaims
from gristmill.worker.batch_policy import BatchPolicy
from gristmill.worker.context import WorkerContext
from gristmill.worker.in_flight import ClaimedRequest
from gristmill.worker.queue_shares import QueueShares

ONE_AT_A_TIME = BatchPolicy("continuous", 1, 0.0)
"""The policy of a braked worker: a try starts at once, beside what still runs."""

LOOK_AGAIN_S = 0.05
"""Seconds before the batcher checks for room again. Room can appear without a request ending, and
the engine's counters lag one step behind each end."""


POLL_JITTER = (0.8, 1.0)
"""Bounds of a random factor of the poll interval, so that the workers of a fleet do not poll in step."""


class ClaimResult(NamedTuple):
    """The result of one claim.

    Attributes:
        requests: The claimed requests, in the order in which they should start.
        has_inbox: True if the claim took elements from the inbox. The worker admits them, so the
            next claim may return them as requests.
        next_due_s: Seconds until the next delayed request is due; None without delayed requests.
    """

    requests: Sequence[ClaimedRequest]
    has_inbox: bool
    next_due_s: float | None


class ClaimSource(Protocol):
    """The part of a `QueueSource` that a batcher uses; it leaves out leases and heartbeats."""

    weight: int
    demand: Demand

    @property
    def has_suspects(self) -> bool:
        """True if this worker holds suspects of the queue."""

    async def claim(
        self, room: Room, suspect_width: int, avoid: Sequence[str] = ()
    ) -> ClaimResult | None:
        """Claim once; return None while claims pause."""

    async def has_high(self) -> bool:
        """Return whether requests wait in the lane `high`."""

    async def resolve_doubt(self) -> None:
        """Release requests that the queue counts for this worker and that the worker lacks."""

    async def hear_doorbell(self, timeout_s: float) -> None:
        """Wait until the doorbell rings, at most `timeout_s` seconds."""


class Batcher:
    """Gathers batches for one engine.

    Args:
        sources: The queues.
        policy: The rule that says when to claim and how much.
        context: The worker.
        is_stopping: Returns whether the worker must stop claiming.
    """

    def __init__(
        self,
        sources: Sequence[ClaimSource],
        policy: BatchPolicy,
        context: WorkerContext,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._sources = sources
        self._open_policy = policy
        self._settings = context.settings
        self._load = context.load
        self._admission = context.admission
        self._limit = context.limit
        self._brake = context.brake
        self._is_stopping = is_stopping
        self._shares = QueueShares([source.weight for source in sources])
        self._urgent = UrgentClaims()
        self._room_kind: RoomKind = "plain"  # of the last claim that found requests

    @property
    def _policy(self) -> BatchPolicy:
        return ONE_AT_A_TIME if self._brake.is_braked else self._open_policy

    async def next_batch(self) -> list[ClaimedRequest]:
        """Claim until the policy closes the batch; return an empty list when stopping."""
        batch: list[ClaimedRequest] = []
        opened_at = time.monotonic()
        while not self._is_stopping():
            num_before = len(batch)
            claims = await self._claim_round(batch)
            if not claims and batch:  # it cannot grow before it starts
                metrics.claims.labels("no_room").inc()
                return batch
            if not claims:
                await self._wait_for_room()
                continue
            if not num_before:
                opened_at = time.monotonic()
            rooms = [self._room(source, batch, time.monotonic()) for source in self._sources]
            reason = batch_policy.close_reason(
                self._policy,
                running=self._load.num_running,
                gathered=len(batch),
                got=len(batch) - num_before,
                waited_s=time.monotonic() - opened_at,
                has_room=any(room.num_requests for room in rooms),
                has_bytes=any(room.num_bytes for room in rooms),
                kind=self._room_kind,
            )
            if reason:
                metrics.claims.labels(reason).inc()
                return batch
            if len(batch) == num_before:
                await self._wait_for_work(claims, opened_at if batch else None)
        if batch:  # the drain or the report of the engine's death releases these requests
            metrics.claims.labels("stopping").inc()
        return []

    async def wait_for_change(
        self,
        doorbells: Sequence[ClaimSource] = (),
        doorbell_s: float = 0.0,
        *,
        heeds_ends: bool = True,
    ) -> None:
        """Wait until a request ends, a doorbell rings, or `doorbell_s` seconds have passed.

        Without doorbells there is no timeout. A change since the last wait ends this one at once,
        because the caller may have missed it.

        Args:
            doorbells: Queues whose doorbells end the wait.
            doorbell_s: Most seconds to wait for a doorbell.
            heeds_ends: False to wait on when a request ends.
        """
        if self._is_stopping():
            return
        event = self._load.changed if heeds_ends else self._load.woken
        waits: set[asyncio.Task[object]] = {asyncio.create_task(event.wait())}
        waits |= {asyncio.create_task(source.hear_doorbell(doorbell_s)) for source in doorbells}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            self._load.changed.clear()
            self._load.woken.clear()
        finally:
            await end(*waits)

    async def _claim_round(self, batch: list[ClaimedRequest]) -> dict[ClaimSource, ClaimResult]:
        """Ask the queues in turn until one has something, and add it to the batch.

        The round stops there, because the tokens of a claim decide which queue comes first in the
        next round. It skips a queue if the engine has no room for its requests or its claims pause,
        and all queues between the tries of a braked worker.

        Returns:
            The result of each queue that the round asked, except an urgent claim that found nothing; empty without any.
        """
        claims = {}
        for place in self._shares.order():
            source = self._sources[place]
            await source.resolve_doubt()
            if claim := await self._claim_from(source, batch):
                claims[source] = claim
                batch.extend(claim.requests)
                self._shares.charge(place, sum(map(_num_tokens, claim.requests)))
                if claim.requests:
                    break
        return claims

    async def _claim_from(
        self, source: ClaimSource, batch: Sequence[ClaimedRequest]
    ) -> ClaimResult | None:
        now_s = time.monotonic()
        room = self._room(source, batch, now_s)
        if not room.num_requests and not self._policy.has_barrier:
            room = await self._urgent_room(source, batch, now_s)
        size = batch_policy.claim_size(
            self._policy,
            running=self._load.num_running,
            gathered=len(batch),
            room=room,
            demand=source.demand,
        )
        num_held = self._load.num_running + len(batch)
        size = int(min(size, self._limit.num_free(num_held, now_s)))
        if size == 0 or not self._brake.may_claim():
            return None
        is_try, is_urgent = self._brake.is_braked, room.kind == "urgent"
        max_tokens = batch_policy.claim_tokens(self._policy, room, self._settings.max_claim_tokens)
        granted = Room(size, max_tokens, min(room.num_bytes, MAX_CLAIM_BYTES), room.kind)
        # A suspect of another lane must not take a place of the lane `high`.
        width = 0 if is_urgent else self._suspect_width_of(source)
        claim = await source.claim(granted, width, self._brake.tried_tenants)
        requests = claim.requests if claim else ()
        if is_urgent:
            self._urgent.note_urgent(source, now_s, size, len(requests))
        else:
            self._urgent.note_all_lanes(source, now_s)
        if not requests:
            return None if is_urgent else claim
        if is_try:
            self._brake.begin_try(requests[0])
        self._room_kind = room.kind
        return claim

    def _room(self, source: ClaimSource, batch: Sequence[ClaimedRequest], now_s: float) -> Room:
        return self._admission.room([request.record for request in batch], source.demand, now_s)

    async def _urgent_room(
        self, source: ClaimSource, batch: Sequence[ClaimedRequest], now_s: float
    ) -> Room:
        """Return the room for requests of the lane `high` alone; none if the lane is known to be empty."""
        if not self._urgent.is_due(source, now_s):
            return NO_ROOM
        only_kept = self._urgent.may_take_only_kept(now_s)
        records = [request.record for request in batch]
        room = self._admission.urgent_room(records, only_kept=only_kept)
        if not room.num_requests or self._urgent.must_claim(source, now_s):
            return room
        if await source.has_high():
            return room
        self._urgent.note_look(source, now_s)
        return NO_ROOM

    def _suspect_width_of(self, source: ClaimSource) -> int:
        """Return how many suspects of a queue may run.

        It is 0 while this worker holds suspects of another queue. After an engine's death,
        `crash.lua` judges the suspects of one queue, so all suspects that ran must come from it.
        """
        others = (other for other in self._sources if other is not source)
        return 0 if any(other.has_suspects for other in others) else self._load.suspect_width

    async def _wait_for_room(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S):
                await self.wait_for_change()

    async def _wait_for_work(
        self, claims: Mapping[ClaimSource, ClaimResult], opened_at: float | None
    ) -> None:
        """Wait for a doorbell, a delayed request, the batch's timeout or a change of the load.

        If a claim took inbox elements, return at once, because they may be requests by now. A worker
        that asked all its queues, had room and found nothing gains nothing when a request ends: its
        claims would only go in circles.
        """
        if any(claim.has_inbox for claim in claims.values()):
            return
        due = (claim.next_due_s for claim in claims.values() if claim.next_due_s is not None)
        poll_s = self._settings.poll_interval_s * random.uniform(*POLL_JITTER)  # noqa: S311  # no secret
        timeout_s = min((poll_s, *due))
        if opened_at is not None:
            timeout_s = min(timeout_s, opened_at + self._policy.timeout_s - time.monotonic())
        if timeout_s > 0:
            heeds_ends = len(claims) < len(self._sources)
            await self.wait_for_change(list(claims), timeout_s, heeds_ends=heeds_ends)


def _num_tokens(request: ClaimedRequest) -> int:
    """Return the estimated length of a request, prompt and output."""
    return request.record.prompt_tokens + request.record.max_tokens

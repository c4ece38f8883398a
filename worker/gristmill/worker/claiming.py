"""Claim what the policy wants, wait when there is nothing, admit the inbox.

The loop calls `gather` again and again. A claim is repeated under one nonce until Redis answers, so a
lost reply loses nothing; what it returned is held before anybody else can look.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import structlog
from redis.exceptions import RedisError
from ulid import ULID

from gristmill.shared.connection import retrying
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.intake import request_from_json
from gristmill.shared.operations import Claim
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.shared.tasks import end
from gristmill.worker import batching, metrics
from gristmill.worker.admission import Admission, Demand, Room
from gristmill.worker.held import Held
from gristmill.worker.settings import WorkerSettings

log = structlog.get_logger()

LOOK_AGAIN_S = 0.05
"""Wait for room: the engine moves between two ends of requests, and its counters lag a step behind them."""


class Claimer:
    """Gathers batches for one worker.

    Args:
        queue: Where requests come from.
        policy: When to claim and how much.
        settings: Limits of a claim.
        held: Where claimed requests go.
        admission: What the engine has room for.
        is_stopping: Whether to claim nothing more.

    Attributes:
        worker: The incarnation that claims.
        is_paused: Whether to claim nothing for now, but for the `allowance`.
        allowance: Requests that may be claimed in spite of a pause.
        is_in_doubt: Whether the queue seems to believe that this worker holds more than it does.
    """

    def __init__(
        self,
        queue: Queue,
        policy: batching.BatchPolicy,
        settings: WorkerSettings,
        held: Held,
        *,
        admission: Admission,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._queue = queue
        self._policy = policy
        self._admission = admission
        self._demand = Demand()
        self._settings = settings
        self._held = held
        self._is_stopping = is_stopping
        self.worker = ""
        self._suspect_width = 1
        self.is_paused = False
        self.allowance = 0
        self.is_in_doubt = False

    async def gather(self) -> list[Claimed]:
        """Claim until the policy closes the batch; empty when stopping.

        Raises:
            LeaseLost: The worker must register anew.
        """
        gathered: list[Claimed] = []
        opened_at = time.monotonic()
        while not self._is_stopping():
            if self.is_in_doubt:
                await self.give_back_unknown(self.worker)
            room = self._admission.room([item.record for item in gathered], self._demand)
            size = batching.claim_size(
                self._policy,
                running=self._held.num_running,
                gathered=len(gathered),
                room=room,
                demand=self._demand,
            )
            if self.is_paused:
                size, self.allowance = min(size, self.allowance), 0
            if size == 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_S):
                        await self.wait_for_change(None)
                continue
            claim = await self._claim(size, room)
            if not gathered:
                opened_at = time.monotonic()
            gathered.extend(claim.claimed)
            reason = batching.close_reason(
                self._policy,
                running=self._held.num_running,
                gathered=len(gathered),
                got=len(claim.claimed),
                waited_s=time.monotonic() - opened_at,
                has_room=self._has_room(gathered),
            )
            if reason:
                metrics.claims.labels(reason).inc()
                return gathered
            await self._wait_for_work(claim, opened_at if gathered else None)
        if gathered:  # it is held, and released by the drain
            metrics.claims.labels("stopping").inc()
        return []

    def widen(self) -> None:
        """Let more suspects run beside normal work: one has ended well."""
        self._suspect_width = batching.widened(self._suspect_width)

    def narrow(self) -> None:
        """Let one suspect run beside normal work: the engine has died."""
        self._suspect_width = 1

    async def wait_for_change(self, doorbell_s: float | None) -> None:
        """Wait until a request ends or, given a time, until the doorbell rings."""
        self._held.changed.clear()
        if self._is_stopping():
            return
        waits: set[asyncio.Task[object]] = {asyncio.create_task(self._held.changed.wait())}
        if doorbell_s is not None:
            waits.add(asyncio.create_task(self._hear_doorbell(doorbell_s)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*waits)

    async def give_back_unknown(self, worker: str) -> None:
        """Hand back what the queue believes that this worker holds, and it does not.

        A Redis that lost its last writes (power failure, failover) has forgotten settlements; a claim
        that was cancelled may have been granted. Call it while no claim is under way.
        """
        self.is_in_doubt = False
        in_flight = await retrying(lambda: self._queue.in_flight(worker))
        known = {(run.claimed.id, run.claimed.delivery) for run in self._held.runs}
        unknown = [delivery for delivery in in_flight if delivery not in known]
        for start in range(0, len(unknown), batching.MAX_CLAIM):
            chunk = unknown[start : start + batching.MAX_CLAIM]
            await retrying(lambda c=chunk: self._queue.release(worker, c))  # type: ignore[misc]  # bound now
        if unknown:
            log.warning("requests.unknown", worker=worker, num_released=len(unknown))

    def _has_room(self, gathered: Sequence[Claimed]) -> bool:
        room = self._admission.room([item.record for item in gathered], self._demand)
        return room.num_requests > 0

    async def _claim(self, size: int, room: Room) -> Claim:
        nonce, worker = str(ULID()), self.worker
        max_tokens = batching.claim_tokens(self._policy, room, self._settings.max_claim_tokens)
        suspects = self._held.suspects
        runs_alone = any(run.claimed.crashes > 1 for run in suspects)
        claim = await retrying(
            lambda: self._queue.claim(
                worker,
                nonce,
                size,
                max_tokens=max_tokens,
                max_suspects=0 if runs_alone else max(0, self._suspect_width - len(suspects)),
                has_suspects=bool(suspects),
            )
        )
        self._demand = Demand(claim.num_queued, claim.num_workers)
        self._held.hold(claim, worker)
        for token, element in claim.inbox:
            await self._admit_element(worker, token, element)
        return claim

    async def _admit_element(self, worker: str, token: str, element: bytes) -> None:
        """Turn plain JSON from the inbox into a request, or into a dead letter."""
        default_id = f"inbox-{token}"
        try:
            request = request_from_json(
                element, default_id=default_id, max_request_bytes=self._settings.max_request_bytes
            )
        except InvalidRequest as error:
            evidence = {"error": str(error)}
            await retrying(lambda: self._queue.bury(worker, token, default_id, evidence))
            log.warning(
                "request.dead_lettered", id=default_id, reason="unreadable", error=str(error)
            )
        else:
            await retrying(lambda: self._queue.admit(worker, token, request))

    async def _wait_for_work(self, claim: Claim, opened_at: float | None) -> None:
        """Wait for the doorbell, the next delayed request, the batch's timeout or a change here."""
        if claim.inbox:
            return
        timeout_s = self._settings.poll_interval_s
        if claim.next_due_ms is not None:
            timeout_s = min(timeout_s, (claim.next_due_ms - claim.now_ms) / 1000)
        if opened_at is not None:
            timeout_s = min(timeout_s, opened_at + self._policy.timeout_s - time.monotonic())
        if timeout_s > 0:
            await self.wait_for_change(timeout_s)

    async def _hear_doorbell(self, timeout_s: float) -> None:
        try:
            await self._queue.redis.blpop([self._queue.keys.doorbell], timeout=max(0.01, timeout_s))
        except (RedisError, OSError):
            await asyncio.sleep(timeout_s)  # away; the next claim waits for its return

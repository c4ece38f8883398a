"""Claims from one queue: what a claim returned is held before anybody else can look.

`gathering.py` says when and how much. A claim is repeated under one nonce until Redis answers, so a lost
reply loses nothing.
"""

import asyncio

import structlog
from redis.exceptions import RedisError
from ulid import ULID

from gristmill.shared.connection import retrying
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.intake import request_from_json
from gristmill.shared.operations import Claim
from gristmill.shared.queue import Queue
from gristmill.worker import batch_policy
from gristmill.worker.admission.room import Demand
from gristmill.worker.in_flight import Held
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.token_rate import Pace

log = structlog.get_logger()


class Claimer:
    """Claims for one worker.

    Args:
        queue: Where requests come from.
        settings: The limit of a body.
        held: Where claimed requests go.
        pace: How fast the engine generates.

    Attributes:
        worker: The incarnation that claims.
        is_paused: Whether to claim nothing for now, but for the `allowance`.
        allowance: Requests that may be claimed in spite of a pause.
        demand: What the queue had left after the last claim.
        is_in_doubt: Whether the queue seems to believe that this worker holds more than it does.
    """

    def __init__(self, queue: Queue, settings: WorkerSettings, held: Held, pace: Pace) -> None:
        self._queue = queue
        self._settings = settings
        self._held = held
        self._pace = pace
        self.worker = ""
        self.is_paused = False
        self.allowance = 0
        self.demand = Demand()
        self.is_in_doubt = False

    def granted(self, size: int) -> int:
        """Return how many of so many requests may be claimed; in a pause the allowance, once."""
        if self.is_paused:
            size, self.allowance = min(size, self.allowance), 0
        return size

    async def claim(self, size: int, max_tokens: int, suspect_width: int) -> Claim:
        """Claim once, and admit what the inbox had.

        Args:
            size: Requests that it may take, from 1.
            max_tokens: By the headers' estimates, of all of them together.
            suspect_width: Suspects of this queue that may run at a time.

        Raises:
            LeaseLost: The worker must register anew.
        """
        nonce, worker = str(ULID()), self.worker
        suspects = self._held.suspects
        runs_alone = any(run.claimed.crashes > 1 for run in suspects)
        claim = await retrying(
            lambda: self._queue.claim(
                worker,
                nonce,
                size,
                max_tokens=max_tokens,
                max_suspects=0 if runs_alone else max(0, suspect_width - len(suspects)),
                has_suspects=bool(suspects),
                ms_per_token=self._pace.ms_per_token,
            )
        )
        self.demand = Demand(claim.num_queued, claim.num_workers)
        self._held.hold(claim, worker)
        for token, element in claim.inbox:
            await self._admit_element(worker, token, element)
        return claim

    async def give_back_unknown(self, worker: str) -> None:
        """Hand back what the queue believes that this worker holds, and it does not.

        A Redis that lost its last writes (power failure, failover) has forgotten settlements; a claim
        that was cancelled may have been granted. Call it while no claim is under way.
        """
        self.is_in_doubt = False
        in_flight = await retrying(lambda: self._queue.in_flight(worker))
        known = {(run.claimed.id, run.claimed.delivery) for run in self._held.runs}
        unknown = [delivery for delivery in in_flight if delivery not in known]
        for start in range(0, len(unknown), batch_policy.MAX_CLAIM):
            chunk = unknown[start : start + batch_policy.MAX_CLAIM]
            await retrying(lambda c=chunk: self._queue.release(worker, c))  # type: ignore[misc]  # bound now
        if unknown:
            queue = self._queue.keys.queue
            log.warning("requests.unknown", queue=queue, worker=worker, num_released=len(unknown))

    async def hear_doorbell(self, timeout_s: float) -> None:
        """Wait until the doorbell rings, or for the timeout."""
        try:
            await self._queue.redis.blpop([self._queue.keys.doorbell], timeout=max(0.01, timeout_s))
        except (RedisError, OSError):
            await asyncio.sleep(timeout_s)  # away; the next claim waits for its return

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
                "request.dead_lettered",
                queue=self._queue.keys.queue,
                id=default_id,
                reason="unreadable",
                error=str(error),
            )
        else:
            await retrying(lambda: self._queue.admit(worker, token, request))

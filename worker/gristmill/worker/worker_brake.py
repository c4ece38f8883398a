"""Stop the claims of a worker whose engine fails everything, and try single requests instead.

The runner tells the outcome of each run, and the batcher asks before each claim. `failure_brake.py`
has the rule. The heartbeat and the probes read from `Liveness` why a worker is braked.
"""

import time
from collections import deque
from typing import Protocol

import structlog

from gristmill.shared.brakes import Brake
from gristmill.shared.records import Record
from gristmill.worker import metrics
from gristmill.worker.engine.interface import Response
from gristmill.worker.failure_brake import Cause, Change, FailureBrake, Outcome, Source, counts_for
from gristmill.worker.failures import Failure, failure_of_answer
from gristmill.worker.liveness import Liveness

log = structlog.get_logger()

REMEDIES = {
    True: "check chat template, adapters and the engine's arguments; look at the example's answer",
    False: "check the engine's log, disk, adapters and VLLM_API_KEY",
}
"""What to do about failures that requests may, or may not, have caused themselves."""

MAX_TRIED = 64
"""Most tenants of tries to remember: an hour of tries."""

REASONS = {
    "succeeded": "a request succeeded",
    "disproved": "the last tries failed otherwise, or too many came from one source",
}


class RunRequest(Protocol):
    """The part of a `ClaimedRequest` that the brake reads."""

    claimed_at: float

    @property
    def id(self) -> str:
        """The request's id."""

    @property
    def queue(self) -> str:
        """Name of the queue that the request came from."""

    @property
    def record(self) -> Record:
        """The record of the request."""

    @property
    def is_held(self) -> bool:
        """True while this worker holds it."""


class WorkerBrake:
    """The brake of one worker.

    Args:
        base_s: Seconds from the start of the brake to the first try; each failed try doubles the pause.
        max_s: Longest pause in seconds.
        liveness: Record in which probes and heartbeats find the reason.

    Attributes:
        tried_tenants: Tenants that have had a try and must wait until others had theirs. One tenant
            whose requests all fail would get every try under the order `fair`, and none would succeed.
    """

    def __init__(self, base_s: float, max_s: float, liveness: Liveness) -> None:
        self._rule = FailureBrake(base_s, max_s)
        self._liveness = liveness
        self._try: RunRequest | None = None
        self.tried_tenants: deque[str] = deque(maxlen=MAX_TRIED)

    @property
    def is_braked(self) -> bool:
        """True while the worker only tries single requests."""
        return self._rule.cause is not None

    def may_claim(self) -> bool:
        """Return whether the worker may claim now: any time, or the next try if it is braked."""
        if not self.is_braked:
            return True
        is_trying = self._try is not None and self._try.is_held
        return not is_trying and self._rule.may_try(time.monotonic())

    def begin_try(self, request: RunRequest) -> None:
        """Note the request that a braked worker claimed."""
        self._try, tenant = request, request.record.tenant
        if tenant in self.tried_tenants:  # all others have had a try, or have nothing
            self.tried_tenants.clear()
        self.tried_tenants.append(tenant)
        self._rule.begin_try(time.monotonic())

    def holds_back(self, request: RunRequest) -> bool:
        """Return whether a claimed request must go back unstarted: the worker was braked since."""
        return self.is_braked and request is not self._try

    def spares_after_answer(self, request: RunRequest, response: Response) -> bool:
        """Note the engine's answer, as `spares` does; the worker's own refusals tell nothing."""
        if not response.is_refusal:
            return self.spares(request, failure_of_answer(response))
        if request is self._try:
            self._rule.void_try(time.monotonic())
        return False

    def spares(self, request: RunRequest, failure: Failure | None) -> bool:
        """Note the outcome of a run.

        Args:
            request: The request, which is not settled yet.
            failure: The failure; None for a success.

        Returns:
            True if the request must go back uncounted instead of failing: it ran before the
            worker was braked, and its failure can have the same cause.
        """
        now_s, cause = time.monotonic(), self._rule.cause
        is_try = request is self._try
        if cause and failure and not is_try:
            return counts_for(failure, cause.failure)
        outcome = Outcome(now_s, _source(request), failure)
        if is_try:
            self._report(self._rule.note_try(outcome), request)
        else:
            self._report(self._rule.note(outcome, request.claimed_at), request)
        return False

    def engine_restarted(self) -> None:
        """Try again soon, because a new engine may be well."""
        self._rule.forget(time.monotonic())

    def _report(self, change: Change | None, request: RunRequest) -> None:
        if change:
            self.tried_tenants.clear()
        if change == "braked" and self._rule.cause:
            self._report_braked(self._rule.cause, request)
        elif change:
            brake, self._liveness.brake, self._try = self._liveness.brake, None, None
            metrics.braked.set(0)
            log.info("worker.unbraked", kind=brake and brake.kind, reason=REASONS[change])

    def _report_braked(self, cause: Cause, request: RunRequest) -> None:
        failure, self._try = cause.failure, None
        brake = Brake(
            failure.kind, cause.num_failed, cause.num_outcomes, failure.message, request.id
        )
        self._liveness.brake = brake
        metrics.braked.set(1)
        log.error(
            "worker.braked",
            kind=brake.kind,
            num_failed=brake.num_failed,
            num_outcomes=brake.num_outcomes,
            message=brake.message,
            example_id=brake.example_id,
            queue=request.queue,
            pause_s=self._rule.pause_s,
            remedy=REMEDIES[failure.may_be_own],
        )


def _source(request: RunRequest) -> Source:
    record = request.record
    return Source(request.queue, record.tenant, record.batch)

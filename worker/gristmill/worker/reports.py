"""Report to logs and to Prometheus: a line for each request at its end, and the pauses of a queue."""

from collections.abc import Mapping

import structlog

from gristmill.shared.pauses import Pause
from gristmill.shared.records import Claimed
from gristmill.worker import metrics
from gristmill.worker.engine.interface import Response

log = structlog.get_logger()


def report_request(
    claimed: Claimed,
    response: Response,
    status: str,
    *,
    worker: str,
    queue_wait_s: float,
    e2e_s: float,
) -> None:
    """Log and count a request at its end. Prompts and outputs are never logged.

    Args:
        claimed: The request that ended.
        response: The engine's answer.
        status: succeeded or failed.
        worker: The worker incarnation that claimed it.
        queue_wait_s: Seconds from submit to claim.
        e2e_s: Seconds from submit to the engine's answer.
    """
    metrics.finished.labels(status).inc()
    metrics.prompt_tokens.inc(response.prompt_tokens)
    metrics.output_tokens.inc(response.output_tokens)
    metrics.e2e.observe(e2e_s)
    if response.ttft_s is not None:
        metrics.ttft.observe(response.ttft_s)
    if response.cut:
        metrics.cut.labels(response.cut).inc()
    record = claimed.record
    log.info(
        "request.completed",
        id=claimed.id,
        status=status,
        status_code=response.status,
        endpoint=record.endpoint,
        tenant=record.tenant,
        priority=record.priority,
        queue_wait_s=round(queue_wait_s, 3),
        ttft_s=None if response.ttft_s is None else round(response.ttft_s, 4),
        e2e_s=round(e2e_s, 3),
        prompt_tokens=response.prompt_tokens,
        output_tokens=response.output_tokens,
        cached_tokens=response.cached_tokens,
        finish_reason=response.finish_reason,
        cut=response.cut,
        attempt=claimed.attempt,
        worker=worker,
    )


class PauseLog:
    """Logs when a queue or a batch of it is paused and resumed.

    Args:
        queue: Name of the queue.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._pauses: Mapping[str, Pause] = {}

    def take(self, pauses: Mapping[str, Pause]) -> None:
        """Log what has changed since the last call.

        Args:
            pauses: Scope -> its pause, as in `Stats`.
        """
        for scope, pause in pauses.items() - self._pauses.items():
            log.info(
                "queue.paused", queue=self._queue, scope=scope, by=pause.by, reason=pause.reason
            )
        for scope in self._pauses.keys() - pauses.keys():
            log.info("queue.resumed", queue=self._queue, scope=scope)
        self._pauses = pauses

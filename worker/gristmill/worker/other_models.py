"""Warn when another worker of a queue serves other models. The heartbeat calls this module.

Any worker of a queue may claim any request in it. A request for a model that only some of them serve
may go through several hands, so the workers of both kinds say so.
"""

from collections.abc import Iterable, Mapping

import structlog

from gristmill.shared.fleet import Served, read_served
from gristmill.shared.queue_access import QueueAccess

log = structlog.get_logger()

NUM_NAMED = 5
"""Workers that one warning names."""

REMEDY = (
    "serve the same models on all workers of a queue, or give each model its own GRISTMILL_QUEUE"
)


class OtherModels:
    """Looks at the workers that join the queues of one worker.

    Args:
        own: What this worker serves.
    """

    def __init__(self, own: Served) -> None:
        self._own = own
        self._known: set[str] = set()

    async def look(self, queue: QueueAccess, worker: str, workers: Iterable[str]) -> None:
        """Warn if a worker that was not there at the last look serves other models.

        Args:
            queue: The queue.
            worker: Name of this worker.
            workers: Names of all workers of the queue.
        """
        present = set(workers)
        joined = await read_served(queue, sorted(present - self._known - {worker}))
        self._known = present
        others = {name: served.models for name, served in joined.items() if self._differs(served)}
        if others:
            self._warn(queue.keys.queue, worker, others)

    def _differs(self, served: Served) -> bool:
        return bool(served.models) and set(served.models) != set(self._own.models)

    def _warn(self, queue: str, worker: str, others: Mapping[str, object]) -> None:
        log.warning(
            "worker.models_differ",
            queue=queue,
            worker=worker,
            models=self._own.models,
            num_others=len(others),
            others=dict(list(others.items())[:NUM_NAMED]),
            remedy=REMEDY,
        )

"""Warn when another worker of a queue serves other models. The heartbeat calls this module.

Any worker of a queue may claim any request in it. A request for a model that only some of them serve
may go through several hands, so the workers of both kinds say so.
"""

import random
from collections.abc import Mapping
from typing import Any

import structlog

from gristmill.shared.fleet import Served, read_served
from gristmill.shared.queue_access import QueueAccess

log = structlog.get_logger()

MAX_LOOKED_AT = 16
"""Most new workers that one look reads, so that the start of a whole fleet costs each of them little."""

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

    async def look(self, queue: QueueAccess, worker: str) -> None:
        """Warn if a worker that was not there at the last look serves other models.

        If more than `MAX_LOOKED_AT` have come since, it reads a random choice of them.

        Args:
            queue: The queue.
            worker: Name of this worker.
        """
        redis: Any = queue.redis
        present = {name.decode() for name in await redis.zrange(queue.keys.workers, 0, -1)}
        new = sorted(present - self._known - {worker})
        joined = await read_served(queue, random.sample(new, min(len(new), MAX_LOOKED_AT)))
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

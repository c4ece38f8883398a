"""What one worker process holds: each request from claim to settled record.

The loop, the claims, the leases and the drain all look here; nobody keeps a list of their own. Each queue
has a `Held`, since an id belongs to a queue; all of them count in the one `Running` of the engine.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gristmill.shared.operations import Claim, Settlement
from gristmill.shared.records import Claimed
from gristmill.worker import batch_policy, metrics
from gristmill.worker.token_rate import Pace


@dataclass(slots=True, eq=False)
class Run:
    """One claimed request in this process.

    Attributes:
        claimed: What was claimed.
        worker: The incarnation that claimed it.
        claimed_at: Monotonic seconds.
        queue_wait_s: From submit to claim, by Redis's clock.
        task: What runs it, once it is admitted.
    """

    claimed: Claimed
    worker: str
    claimed_at: float
    queue_wait_s: float
    task: "asyncio.Task[None] | None" = None


class Running:
    """What the engine runs, of all queues together.

    Attributes:
        num_requests: In the engine.
        suspect_width: Suspects that may run beside normal work.
        pace: How fast the engine generates.
        changed: Set when a request ends, and by whoever wants the loop to look again; who waits clears it.
        idle: Set while nothing runs.
    """

    def __init__(self) -> None:
        self.num_requests = 0
        self.suspect_width = 1
        self.pace = Pace()
        self.changed = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    def add(self) -> None:
        """Count one that starts."""
        self.num_requests += 1
        self.idle.clear()
        metrics.running.set(self.num_requests)

    def remove(self) -> None:
        """Count one that has ended."""
        self.num_requests -= 1
        metrics.running.set(self.num_requests)
        self.changed.set()
        if not self.num_requests:
            self.idle.set()

    def widen(self) -> None:
        """Let more suspects run beside normal work: one has ended well."""
        self.suspect_width = batch_policy.widened(self.suspect_width)

    def narrow(self) -> None:
        """Let one suspect run beside normal work: the engine has died."""
        self.suspect_width = 1


class Held:
    """The requests of one queue.

    Args:
        running: Counts what runs.

    Attributes:
        num_running: Requests of this queue in the engine.
    """

    def __init__(self, running: Running) -> None:
        self._all = running
        self._runs: dict[str, Run] = {}
        self.num_running = 0

    @property
    def runs(self) -> list[Run]:
        """All that is held, in the order of the claims."""
        return list(self._runs.values())

    @property
    def suspects(self) -> list[Run]:
        """Those that saw an engine die."""
        return [run for run in self._runs.values() if run.claimed.crashes]

    def hold(self, claim: Claim, worker: str) -> None:
        """Take over what a claim returned."""
        now = time.monotonic()
        for claimed in claim.claimed:
            wait_s = max(0.0, (claim.now_ms - claimed.record.enqueued_ms) / 1000)
            self._runs[claimed.id] = Run(claimed, worker, now, wait_s)
            metrics.queue_wait.observe(wait_s)
        metrics.claimed.inc(len(claim.claimed))

    def find(self, claimed: Claimed) -> Run | None:
        """Return the run of this very claim, or None if it was aborted or given to others."""
        run = self._runs.get(claimed.id)
        return run if run and run.claimed is claimed else None

    def start(self, run: Run, task: "asyncio.Task[None]") -> None:
        """Note that a request runs; its end is noted by itself."""
        run.task = task
        self.num_running += 1
        self._all.add()
        task.add_done_callback(self._ended)

    def forget(self, deliveries: Iterable[Claimed | Settlement]) -> None:
        """Drop what is settled or given back, unless the same id was claimed anew meanwhile."""
        for done in deliveries:
            run = self._runs.get(done.id)
            if run and run.claimed.delivery == done.delivery:
                del self._runs[done.id]
                if run.claimed.crashes:  # the next suspect may be claimed
                    self._all.changed.set()

    def take(self, ids: Iterable[str]) -> list[Run]:
        """Drop requests that ended elsewhere, whichever delivery is held; returns those that were."""
        return [run for request_id in ids if (run := self._runs.pop(request_id, None))]

    def cancel(self, runs: Sequence[Run]) -> "list[asyncio.Task[None]]":
        """Abort what runs; returns the tasks that are about to end."""
        tasks = [run.task for run in runs if run.task and not run.task.done()]
        for task in tasks:
            task.cancel()
        return tasks

    def _ended(self, _: "asyncio.Task[None]") -> None:
        self.num_running -= 1
        self._all.remove()

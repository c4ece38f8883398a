"""Report what delays the requests of a queue, and when the delay ends; for commands that wait."""

from collections.abc import Mapping
from pathlib import Path

from gristmill.producer.commands.session import absence
from gristmill.shared.brakes import Brake, all_braked
from gristmill.shared.cli import say
from gristmill.shared.pauses import pause_in_words
from gristmill.shared.queue_stats import Stats, num_live

LOOK_S = 1.0
"""Longest time between two looks at the workers, in seconds."""


class HoldUps:
    """Watches workers, pauses, suspects and brakes of one queue, and reports each change once.

    Args:
        queue: Name of the queue.
        workers_log: Log of the workers if the command started them, which also restarts them; None if others did.

    Attributes:
        is_served: True if the lease of at least one worker has not ended, and no pause keeps it from claiming.
    """

    def __init__(self, queue: str, workers_log: Path | None = None) -> None:
        self._queue = queue
        self._log = workers_log
        self._longest_ms: dict[str, int] = {}
        self._problem: str | None = None
        self._paused: str | None = None
        self._has_suspects = False
        self._has_told_brakes = False
        self.is_served = True

    def tell(self, stats: Stats, batch: str = "") -> None:
        """Report what has changed since the last call.

        Args:
            stats: View of the queue.
            batch: Batch that the caller waits for; "" for none.
        """
        paused = pause_in_words(self._queue, stats.pauses, batch)
        self.is_served = num_live(stats.workers) > 0 and not paused
        self._tell_pause(paused)
        self._tell_problem(self._absence(stats.workers) or self._silence(stats.workers))
        num_suspects = stats.depth_by_lane["suspect"]
        if num_suspects and not self._has_suspects:
            say(
                f"an engine or a worker died; {num_suspects:,} requests that it ran are tried again first, a few at a"
                " time, to find out which of them kills it"
            )
        self._has_suspects = num_suspects > 0

    def tell_brakes(self, workers: Mapping[str, int], brakes: Mapping[str, Brake]) -> None:
        """Report once that all live workers are braked, which can last until each request has failed.

        Args:
            workers: Worker -> milliseconds left of its lease.
            brakes: Braked worker -> why it is braked.
        """
        if self._has_told_brakes or not all_braked(workers, brakes):
            return
        self._has_told_brakes = True
        why = next(iter(brakes.values())).in_words()
        more = f"see {self._log}" if self._log else "the logs of the workers say more"
        say(f"every worker of queue {self._queue} is braked: {why}; {more}")

    def _tell_pause(self, paused: str | None) -> None:
        if paused and paused != self._paused:
            say(f"nothing runs: {paused}")
        elif self._paused and not paused:
            say(f"queue {self._queue} goes on: the pause has ended")
        self._paused = paused

    def _tell_problem(self, problem: str | None) -> None:
        if problem and problem != self._problem:
            say(problem)
        elif self._problem and not problem:
            say(f"a worker of queue {self._queue} is alive; requests run")
        self._problem = problem

    def _absence(self, workers: Mapping[str, int]) -> str | None:
        """Return a notice if no worker is alive, else None."""
        if self._log is None:
            return absence(self._queue, workers)
        if num_live(workers):
            return None
        return f"no worker of this command is alive; it is restarted, see {self._log}"

    def _silence(self, workers: Mapping[str, int]) -> str | None:
        """Return a notice if no worker has renewed its lease for half of the lease time, else None.

        A worker renews its lease at least three times per lease time. Each worker has its own lease
        time, so the longest remaining time that was seen stands for it.
        """
        for worker, left_ms in workers.items():
            self._longest_ms[worker] = max(left_ms, self._longest_ms.get(worker, 0))
        if any(2 * left_ms > self._longest_ms[worker] for worker, left_ms in workers.items()):
            return None
        half_s = max(self._longest_ms[worker] for worker in workers) / 2000
        silent = f"no worker of queue {self._queue} has renewed its lease for {half_s:.0f} s"
        if self._log:
            return f"{silent}; see {self._log}"
        return f"{silent}; if it is dead, its requests go to other workers when the lease ends"

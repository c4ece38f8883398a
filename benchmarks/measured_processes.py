"""Run the processes of a benchmark: start, kill and replace them, and record their peak memory."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from gristmill.local.processes import die_with_parent

GRISTMILL = (sys.executable, "-m", "gristmill.shared.cli")
WORKER = (sys.executable, str(Path(__file__).parents[1] / "tests" / "stub_worker.py"))


class MeasuredProcesses:
    """Processes of several kinds, which start in the order of `numbers`.

    Args:
        commands: Command of each kind.
        numbers: Number of processes of each kind.
        environment: Variables beside those of this process.
        folder: Folder to run in, which gets a log of each kind; None drops their output.

    Attributes:
        peak_mb: Largest memory of one process of each kind, in MB.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        numbers: Mapping[str, int],
        environment: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        self.peak_mb: Counter[str] = Counter()
        self._commands = commands
        self._environment = {**os.environ, **environment}
        self._folder = folder
        self._running = {kind: [self._start(kind) for _ in range(n)] for kind, n in numbers.items()}

    def _start(self, kind: str) -> "subprocess.Popen[bytes]":
        with ExitStack() as stack:
            log = (
                stack.enter_context((self._folder / f"{kind}.log").open("ab"))
                if self._folder
                else subprocess.DEVNULL
            )
            return subprocess.Popen(  # noqa: S603  # our own commands
                self._commands[kind],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509  # nothing here has threads
            )

    def measure(self) -> None:
        """Record the peak memory of each kind."""
        for kind, processes in self._running.items():
            for process in processes:
                with suppress(OSError, IndexError):
                    status = Path(f"/proc/{process.pid}/status").read_text()
                    peak_kb = int(status.split("VmHWM:")[1].split()[0])
                    self.peak_mb[kind] = max(self.peak_mb[kind], peak_kb // 1024)

    def kill_one(self, kind: str, chance: random.Random) -> None:
        """Kill -9 one process of a kind, and start another."""
        processes = self._running[kind]
        number = chance.randrange(len(processes))
        processes[number].kill()
        processes[number].wait()
        processes[number] = self._start(kind)

    def stop(self) -> None:
        """Stop all processes, Redis last."""
        for processes in reversed(self._running.values()):
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()

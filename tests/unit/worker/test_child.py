"""A parent keeps a worker alive whose process does not start, and knows when one is starting."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

import psutil

from gristmill.shared.settings import read_settings
from gristmill.worker.death_count import MAX_DEATHS
from gristmill.worker.exit_codes import EXIT_ENGINE, EXIT_OK, EXIT_SETTINGS
from gristmill.worker.parent import ChildPlan
from gristmill.worker.parent.child import Child
from gristmill.worker.parent.child_process import ChildStart
from gristmill.worker.settings import WorkerSettings

ENDS = (sys.executable, "-c", f"raise SystemExit({EXIT_SETTINGS})")


def child(
    command: Path | tuple[str, ...],
    turn_fd: int,
    stopping: asyncio.Event,
    has_sibling_up: Callable[[Child], bool] = lambda _: False,
) -> Child:
    words = command if isinstance(command, tuple) else (str(command),)
    settings = read_settings(WorkerSettings, backoff_base_s=0.01, backoff_max_s=0.02)
    start = ChildStart(words, dict(os.environ), turn_fd)
    return Child(ChildPlan("0", 0, []), start, settings, stopping, has_sibling_up)


async def test_process_that_the_system_refuses_is_a_death_like_others(tmp_path: Path) -> None:
    num_open = psutil.Process().num_fds()
    with TemporaryFile() as turn:
        alone = child(tmp_path / "absent", turn.fileno(), asyncio.Event())
        assert await alone.run() == EXIT_ENGINE
    assert alone.num_restarts == 0
    assert psutil.Process().num_fds() == num_open


async def test_refused_process_is_tried_again_while_another_worker_is_up(tmp_path: Path) -> None:
    stopping, num_asked = asyncio.Event(), 0

    def is_up(_: Child) -> bool:
        nonlocal num_asked
        num_asked += 1
        if num_asked > MAX_DEATHS:
            stopping.set()
        return True

    with TemporaryFile() as turn:
        assert await child(tmp_path / "absent", turn.fileno(), stopping, is_up).run() == EXIT_OK


async def test_process_whose_id_is_not_known_yet_is_starting() -> None:
    """Else the parent of process 1 would take the exit code of a worker that dies at once."""
    others = set(psutil.Process().children())  # servers of other tests
    with TemporaryFile() as turn:
        starting = child(ENDS, turn.fileno(), asyncio.Event())
        running = asyncio.create_task(starting.run())
        while not set(psutil.Process().children()) - others:
            await asyncio.sleep(0)
        pid, is_starting = starting.pid, starting.is_starting
        assert await running == EXIT_SETTINGS  # first: a cancelled start of a process may hang
        assert (pid, is_starting) == (None, True)
        assert not starting.is_starting

"""A parent of several workers around stub engines; with `--engine`, one of these workers.

`STUB_TOKEN_DELAY_S` sets the speed of the stubs. `STUB_FOLDER` takes the times of their starts, and a
file `broken` in it names the engines that do not start.
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gristmill.shared.errors import EngineDied
from gristmill.shared.settings import read_settings
from gristmill.worker.engine import EngineInfo, StubEngine
from gristmill.worker.parent import engine_child, planned_children, run_parent
from gristmill.worker.settings import WorkerSettings

START_S = 0.3
FLAGS = ("--model", "stub", "--kv-cache-memory-bytes", "1")


class BreakableEngine(StubEngine):
    """A stub that takes `START_S` to start, and does not start while the file `broken` names it."""

    async def start(self) -> EngineInfo:
        folder, number = Path(os.environ["STUB_FOLDER"]), sys.argv[sys.argv.index("--engine") + 1]
        began = time.monotonic()
        await asyncio.sleep(START_S)
        with (folder / "starts").open("a") as starts:
            starts.write(f"{began} {time.monotonic()}\n")
        if number in (folder / "broken").read_text().split():
            raise EngineDied("the stub engine was told not to start")
        return await super().start()


def made_engine(_settings: WorkerSettings, _flags: Sequence[str]) -> StubEngine:
    return BreakableEngine(token_delay_s=float(os.environ["STUB_TOKEN_DELAY_S"]))


if __name__ == "__main__":
    if "--engine" in sys.argv:
        sys.exit(engine_child.main(sys.argv[1:], made_engine))
    settings = read_settings(WorkerSettings)
    plans = planned_children(settings, FLAGS)
    sys.exit(run_parent(settings, plans, (sys.executable, __file__)))

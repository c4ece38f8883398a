"""The true command `gristmill worker` around stub engines, for commands that start workers.

`STUB_TOKEN_DELAY_S` sets the speed of the engine. With `STUB_BROKEN` it does not start. Several engines
are those of `stub_engines.py`.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gristmill.shared.errors import EngineDied
from gristmill.worker import __main__ as process
from gristmill.worker.commands import worker
from gristmill.worker.engine import EngineInfo, StubEngine
from gristmill.worker.parent import run_parent
from gristmill.worker.settings import WorkerSettings

__all__ = ["worker"]

STUB_ENGINES = (sys.executable, str(Path(__file__).with_name("stub_engines.py")))


class OneEngine(StubEngine):
    async def start(self) -> EngineInfo:
        if "STUB_BROKEN" in os.environ:
            raise EngineDied("the stub engine was told not to start")
        return await super().start()


def made_engine(_settings: WorkerSettings, _flags: Sequence[str]) -> StubEngine:
    return OneEngine(token_delay_s=float(os.environ.get("STUB_TOKEN_DELAY_S", "0")))


vars(process).update(  # the names that `run_worker` calls
    engine_from=made_engine, run_parent=partial(run_parent, command=STUB_ENGINES)
)

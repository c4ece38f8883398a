"""The true command `gristmill worker` around stub engines, for commands that start workers.

`STUB_TOKEN_DELAY_S` sets the speed of the engine. With `STUB_BROKEN` it does not start. With `STUB_FAULT` it
fails every request. It answers `STUB_MAX_ANSWERS` requests and holds the others. Several engines are those of `stub_engines.py`.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gristmill.shared.errors import EngineDied
from gristmill.worker import __main__ as process
from gristmill.worker.commands import worker
from gristmill.worker.engine import EngineInfo, StubEngine
from gristmill.worker.engine.interface import Response
from gristmill.worker.engine.refusals import error_response
from gristmill.worker.parent import run_parent
from gristmill.worker.settings import WorkerSettings

__all__ = ["worker"]

STUB_ENGINES = (sys.executable, str(Path(__file__).with_name("stub_engines.py")))


class OneEngine(StubEngine):
    max_answers = float(os.environ.get("STUB_MAX_ANSWERS", "inf"))
    num_answered = 0

    async def start(self) -> EngineInfo:
        if "STUB_BROKEN" in os.environ:
            raise EngineDied("the stub engine was told not to start")
        return await super().start()

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        answer = await super().post(endpoint, body, **options)
        if self.num_answered >= self.max_answers:
            await asyncio.Event().wait()
        self.num_answered += 1
        return answer


def made_engine(_settings: WorkerSettings, _flags: Sequence[str]) -> StubEngine:
    engine = OneEngine(token_delay_s=float(os.environ.get("STUB_TOKEN_DELAY_S", "0")))
    if "STUB_FAULT" in os.environ:
        engine.fault = error_response(500, os.environ["STUB_FAULT"], "InternalServerError")
    return engine


vars(process).update(  # the names that `run_worker` calls
    engine_from=made_engine, run_parent=partial(run_parent, command=STUB_ENGINES)
)

"""A worker process around the stub engine. `STUB_TOKEN_DELAY_S` sets its speed, `STUB_TTFT_S` the time that it reports."""

import os
import sys
from dataclasses import replace
from typing import Any

from gristmill.shared.settings import read_settings
from gristmill.worker.__main__ import run_with_engine
from gristmill.worker.engine import StubEngine
from gristmill.worker.engine.interface import Response
from gristmill.worker.settings import WorkerSettings

TTFT_S = float(os.environ.get("STUB_TTFT_S", "0"))


class TimedStub(StubEngine):
    """A stub that reports a time to the first token, as vLLM does."""

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        """Answer; see `Engine.post`."""
        return replace(await super().post(endpoint, body, **options), ttft_s=TTFT_S or None)


if __name__ == "__main__":
    engine = TimedStub(token_delay_s=float(os.environ.get("STUB_TOKEN_DELAY_S", "0")))
    sys.exit(run_with_engine(read_settings(WorkerSettings), engine))

"""A worker process around the stub engine: `STUB_TOKEN_DELAY_S` sets its speed."""

import os
import sys

from gristmill.shared.settings import read_settings
from gristmill.worker.__main__ import run_with_engine
from gristmill.worker.engine import StubEngine
from gristmill.worker.settings import WorkerSettings

if __name__ == "__main__":
    engine = StubEngine(token_delay_s=float(os.environ.get("STUB_TOKEN_DELAY_S", "0")))
    sys.exit(run_with_engine(read_settings(WorkerSettings), engine))

"""The engine, and the only package that uses vLLM and torch; importing it loads neither.

One interface, `Engine`, has three implementations:

- `InProcessEngine` runs AsyncLLM in this process.
- `RemoteEngine` calls an OpenAI-compatible server at a URL.
- `StubEngine` has no model; scheduling and load tests use it.
"""

from gristmill.worker.engine.factory import engine_from
from gristmill.worker.engine.interface import (
    Engine,
    EngineInfo,
    EngineStats,
    OnEvent,
    Response,
    RunLimits,
)
from gristmill.worker.engine.remote import RemoteEngine
from gristmill.worker.engine.stub import StubEngine
from gristmill.worker.engine.vllm.in_process import InProcessEngine

__all__ = [
    "Engine",
    "EngineInfo",
    "EngineStats",
    "InProcessEngine",
    "OnEvent",
    "RemoteEngine",
    "Response",
    "RunLimits",
    "StubEngine",
    "engine_from",
]

"""The engine: the one place that knows vLLM and torch, neither of which importing this loads.

One interface, three ways behind it: `InProcessEngine` (AsyncLLM in this process), `RemoteEngine`
(an OpenAI-compatible server at a URL) and `StubEngine` (no model, for scheduling and load tests).
"""

from gristmill.worker.engine.factory import engine_from
from gristmill.worker.engine.interface import Engine, EngineInfo, EngineStats, Response, RunLimits
from gristmill.worker.engine.remote import RemoteEngine
from gristmill.worker.engine.stub import StubEngine
from gristmill.worker.engine.vllm.in_process import InProcessEngine

__all__ = [
    "Engine",
    "EngineInfo",
    "EngineStats",
    "InProcessEngine",
    "RemoteEngine",
    "Response",
    "RunLimits",
    "StubEngine",
    "engine_from",
]

"""What the parts of one worker share; `wiring.py` makes it once."""

from collections.abc import Mapping
from dataclasses import dataclass

from gristmill.worker.admission.room import Admission
from gristmill.worker.drain import Drain
from gristmill.worker.engine.interface import Engine
from gristmill.worker.engine_load import EngineLoad
from gristmill.worker.liveness import Liveness
from gristmill.worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One worker: its settings, its engine and its state.

    Attributes:
        settings: The worker's settings.
        engine: The engine that runs requests; started.
        admission: What the engine has room for.
        load: What the engine runs.
        drain: Tells when to stop.
        liveness: Signs of life, read by the probes.
        facts: What the worker serves; other clients see it in `worker:<worker>`.
    """

    settings: WorkerSettings
    engine: Engine
    admission: Admission
    load: EngineLoad
    drain: Drain
    liveness: Liveness
    facts: Mapping[str, str | int]

"""The objects that the parts of one worker share; `wiring.py` makes them once."""

from collections.abc import Mapping
from dataclasses import dataclass

from gristmill.shared.fleet import Served
from gristmill.worker.admission.room import Admission
from gristmill.worker.device_time import DeviceTime
from gristmill.worker.drain import Drain
from gristmill.worker.engine.interface import Engine
from gristmill.worker.engine_limit import EngineLimit
from gristmill.worker.engine_load import EngineLoad
from gristmill.worker.liveness import Liveness
from gristmill.worker.provenance import Provenance
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.worker_brake import WorkerBrake


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One worker: its settings, its engine and its state.

    Attributes:
        settings: The worker's settings.
        engine: The engine that runs requests; it is started.
        admission: Calculator of the engine's room.
        load: Counts of the requests that the engine runs.
        limit: Limit on the requests that the engine takes, learned from its failures.
        brake: Brake that stops claims while the engine fails everything.
        drain: State of the drain: whether the worker must stop.
        liveness: Signs of life, which the probes read.
        provenance: What made the answers, for the results.
        device_time: The time of the engine's devices, which its requests divide.
        served: Models and endpoints that the worker serves.
        facts: Facts about what the worker serves; other clients read them in `worker:<worker>`.
    """

    settings: WorkerSettings
    engine: Engine
    admission: Admission
    load: EngineLoad
    limit: EngineLimit
    brake: WorkerBrake
    drain: Drain
    liveness: Liveness
    provenance: Provenance
    device_time: DeviceTime
    served: Served
    facts: Mapping[str, str | int]

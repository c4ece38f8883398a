"""What is compared: a policy of batching, an order of scheduling and a size, as a worker's settings."""

from dataclasses import dataclass
from typing import Any, get_args

from gristmill.shared.operations import Scheduling
from gristmill.worker.engine import EngineInfo
from gristmill.worker.settings import WorkerSettings

ALONE = "engine alone"
"""Stands where a policy stands, for the load posted straight to the engine."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to run a load.

    Attributes:
        policy: A `batch_policy` of the worker, or `ALONE`.
        scheduling: A `scheduling` of the worker; "" for its default.
        size: Requests that the engine holds at the same time; 0 for what the engine runs.
    """

    policy: str
    scheduling: str = ""
    size: int = 0

    @property
    def label(self) -> str:
        """Its name in tables and plots."""
        name = f"{self.policy}, {self.scheduling}" if self.scheduling else self.policy
        return f"{name} x{self.size}" if self.size else name


POLICIES: tuple[str, ...] = get_args(WorkerSettings.model_fields["batch_policy"].annotation)
SCHEDULINGS: tuple[str, ...] = get_args(Scheduling)


def setups(policies: list[str], schedulings: list[str], sizes: list[int]) -> list[Setup]:
    """Return every combination; `sequential` has one size only."""
    found = [
        Setup(policy, scheduling, 0 if policy == "sequential" else size)
        for policy in policies
        for scheduling in schedulings or [""]
        for size in sizes or [0]
    ]
    return list(dict.fromkeys(found))


def worker_fields(setup: Setup, info: EngineInfo, batch_timeout_ms: float) -> dict[str, Any]:
    """Return the settings of the worker that make it one of `setup`, None for its defaults.

    The size is a batch's where a batch runs to its end, and the limit in flight where there is no
    barrier, so policies are compared at equal concurrency. As many in flight as the engine runs, or
    more, is no limit: the default then keeps a few more at hand.
    """
    size = setup.size or info.max_num_seqs
    fields: dict[str, Any] = {
        "batch_policy": setup.policy,
        "scheduling": setup.scheduling or None,
    }
    if setup.policy == "continuous":
        return fields | {"max_in_flight": size if size < info.max_num_seqs else None}
    return fields | {"batch_size": size, "batch_timeout_ms": batch_timeout_ms}

"""The setups to compare: batch policy, scheduling order and size, with the worker's settings."""

from dataclasses import dataclass
from typing import Any, get_args

from gristmill.shared.operations import Scheduling
from gristmill.worker.settings import WorkerSettings

ALONE = "engine alone"
"""Value of `Setup.policy` for a load that goes straight to the engine."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to run a load.

    Attributes:
        policy: A `batch_policy` of the worker, or `ALONE`.
        scheduling: A `scheduling` of the worker; "" for its default.
        size: Requests in the engine at a time; 0 for the engine's `max_num_seqs`.
        refill: A `refill` of the worker, for `continuous`; 0 for its default.
    """

    policy: str
    scheduling: str = ""
    size: int = 0
    refill: int = 0

    @property
    def label(self) -> str:
        """Name of the setup in tables and plots."""
        name = f"{self.policy}, {self.scheduling}" if self.scheduling else self.policy
        name = f"{name}, refill {self.refill}" if self.refill else name
        return f"{name} x{self.size}" if self.size else name


POLICIES: tuple[str, ...] = get_args(WorkerSettings.model_fields["batch_policy"].annotation)
SCHEDULINGS: tuple[str, ...] = get_args(Scheduling)


def setups(
    policies: list[str], schedulings: list[str], sizes: list[int], refills: list[int]
) -> list[Setup]:
    """Return every combination; `sequential` has one size only, and only `continuous` refills."""
    found = [
        Setup(policy, scheduling, size if policy != "sequential" else 0, refill)
        for policy in policies
        for scheduling in schedulings or [""]
        for size in sizes or [0]
        for refill in (refills if policy == "continuous" and refills else [0])
    ]
    return list(dict.fromkeys(found))


def worker_fields(setup: Setup, max_num_seqs: int, batch_timeout_ms: float) -> dict[str, Any]:
    """Return the worker's settings for a setup; None stands for the worker's default.

    The size is the batch size of a policy whose batch runs to its end. For `continuous` it limits
    the requests in flight, so that all policies have equal concurrency. If it is at least
    `max_num_seqs`, the worker keeps its default limit, which is a little above `max_num_seqs`.
    """
    size = setup.size or max_num_seqs
    fields: dict[str, Any] = {
        "batch_policy": setup.policy,
        "scheduling": setup.scheduling or None,
    }
    if setup.policy == "continuous":
        return fields | {
            "max_in_flight": size if size < max_num_seqs else None,
            "refill": setup.refill or None,
        }
    return fields | {"batch_size": size, "batch_timeout_ms": batch_timeout_ms}

"""Show which workers are braked: their engine fails everything, or they lose their lease again and again.

A worker writes its brake into the field `braked` of `worker:<worker>`, and `gristmill queue stats` reads it (`queue_brakes.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import orjson

from gristmill.shared.answers import mapping

FIELD = "braked"
"""Field of the HASH `worker:<worker>`; it exists while the worker is braked."""


LEASE_LOST = "lease_lost"
"""Kind of a brake whose failures are losses of the lease."""


@dataclass(frozen=True, slots=True)
class Brake:
    """Why a worker is braked.

    Attributes:
        kind: Kind of the failures, such as `500 InternalServerError`; `LEASE_LOST` for losses of the lease.
        num_failed: Requests that failed before the worker stopped claiming, or losses in a row.
        num_outcomes: Requests that ended in that time, or the same losses.
        message: Beginning of the engine's last error message; empty for a 4xx, which may quote the request.
        example_id: Id of the last of these requests; empty for losses of the lease.
    """

    kind: str
    num_failed: int
    num_outcomes: int
    message: str
    example_id: str

    @classmethod
    def parse(cls, note: bytes) -> Self:
        """Read the value of the field, as far as it can be read: a stray one must not stop its readers."""
        try:
            known = mapping(orjson.loads(note))
        except ValueError:
            known = {}
        numbers = [known.get(name) for name in ("num_failed", "num_outcomes")]
        num_failed, num_outcomes = (each if isinstance(each, int) else 0 for each in numbers)
        kind, message = known.get("kind", "unknown failures"), known.get("message", "")
        example_id = known.get("example_id", "unknown")
        return cls(str(kind), num_failed, num_outcomes, str(message), str(example_id))

    def in_words(self) -> str:
        """Return the reason for people, in one line."""
        if self.kind == LEASE_LOST:
            return f"lost its lease {self.num_failed} times in a row: {self.message}"
        message = f": {self.message}" if self.message else ""
        return (
            f"{self.num_failed} of the last {self.num_outcomes} requests failed with {self.kind}{message}"
            f" (such as {self.example_id}); it tries single requests"
        )


def all_braked(workers: Mapping[str, int], brakes: Mapping[str, Brake]) -> bool:
    """Return True if workers live and all of them are braked.

    Args:
        workers: Worker -> milliseconds left of its lease.
        brakes: Braked worker -> why it is braked.
    """
    live = {worker for worker, left_ms in workers.items() if left_ms > 0}
    return bool(live) and live <= brakes.keys()

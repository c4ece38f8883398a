"""Read the worker's own counters of its claims."""

from collections import Counter
from dataclasses import dataclass, field

import prometheus_client

from gristmill.worker import metrics


@dataclass(frozen=True, slots=True)
class ClaimCounters:
    """Counters of one process.

    Attributes:
        num_claimed: Requests claimed.
        closed_by: Number of started batches for each reason that closed them.
    """

    num_claimed: int = 0
    closed_by: Counter[str] = field(default_factory=Counter)

    @classmethod
    def so_far(cls) -> "ClaimCounters":
        """Return the counts since the process began."""
        reasons: Counter[str] = Counter()
        for labels, value in _values(metrics.claims):
            reasons[labels["closed_by"]] += value
        return cls(sum(value for _, value in _values(metrics.claimed)), reasons)

    def __sub__(self, earlier: "ClaimCounters") -> "ClaimCounters":
        """Return the difference from an earlier reading."""
        return ClaimCounters(
            self.num_claimed - earlier.num_claimed, self.closed_by - earlier.closed_by
        )


def _values(counter: prometheus_client.Counter) -> list[tuple[dict[str, str], int]]:
    samples = (sample for family in counter.collect() for sample in family.samples)
    return [(each.labels, int(each.value)) for each in samples if each.name.endswith("_total")]

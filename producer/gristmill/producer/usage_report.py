"""Sum up the ledger by day, tenant or model, with costs; `gristmill usage` and the gateway call it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gristmill.shared.usage_ledger import LedgerRow, Usage

By = Literal["day", "tenant", "model"]

MS_PER_HOUR = 3600 * 1000


@dataclass(frozen=True, slots=True)
class UsageLine:
    """One line of a report.

    Attributes:
        names: Day (YYYY-MM-DD), tenant or model, in the order in which the report sums up.
        usage: The sum.
        device_hour_price: Price of an hour of one device, in any currency; 0 if nobody set one.
    """

    names: Sequence[str]
    usage: Usage
    device_hour_price: float = 0.0

    @property
    def cost(self) -> float:
        """Cost of the device time."""
        return cost_of(self.usage.device_ms, self.device_hour_price)

    @property
    def cost_per_million_tokens(self) -> float | None:
        """Cost of a million prompt and output tokens; None without a token."""
        num_tokens = self.usage.num_tokens
        return self.cost * 1e6 / num_tokens if num_tokens else None


def cost_of(device_ms: int, device_hour_price: float) -> float:
    """Return the cost of a device time."""
    return device_ms * device_hour_price / MS_PER_HOUR


def usage_lines(
    rows: Iterable[LedgerRow], by: Sequence[By], device_hour_price: float
) -> list[UsageLine]:
    """Return the sums of rows that agree in day, tenant or model, in the order of these names.

    Args:
        rows: Rows of the ledger.
        by: What a line stands for; nothing for one line of all rows.
        device_hour_price: Price of an hour of one device.
    """
    groups: defaultdict[tuple[str, ...], list[Usage]] = defaultdict(list)
    for row in rows:
        groups[tuple(str(getattr(row, name)) for name in by)].append(row.usage)
    return [
        UsageLine(names, Usage.total(usages), device_hour_price)
        for names, usages in sorted(groups.items())
    ]

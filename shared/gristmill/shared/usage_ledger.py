"""Read the ledger: what each tenant used of each model on each UTC day. `lua/ack.lua` writes it.

`gristmill usage`, the gateway and the budgets of tenants call it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple, Self

from gristmill.shared.queue import Queue
from gristmill.shared.snapshot import read_together

OTHERS = "*"
"""Model, and perhaps tenant, of what a day's hash had no room for (`lua/includes/usage.lua`)."""

USAGE_DAYS = 400
"""Days that the ledger keeps (`lua/includes/usage.lua`)."""

FIELDS_A_CALL = 2000
"""Fields that one call reads; a day has up to 20,000. Redis and the event loop are held for some milliseconds."""

_EPOCH = date(1970, 1, 1)


class Usage(NamedTuple):
    """What requests used.

    Attributes:
        requests: Requests that an engine answered, failed ones included.
        prompt_tokens: Tokens of their prompts, cached ones included.
        cached_tokens: Prompt tokens found in the prefix cache.
        output_tokens: Tokens generated.
        device_ms: Their share of the time of the engines' devices, in milliseconds.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    device_ms: int = 0

    @classmethod
    def parse(cls, value: bytes) -> Self:
        """Read a value of the ledger; a later version may have appended numbers."""
        return cls(*map(int, value.split(b"|")[:5]))

    @classmethod
    def total(cls, usages: "Iterable[Usage]") -> Self:
        """Return the sum."""
        return cls(*(sum(column) for column in zip(cls(), *usages, strict=True)))

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What a tenant used of a model on a day.

    Attributes:
        day: UTC day on which the requests ended.
        tenant: The tenant; `OTHERS` for those that the day had no room for.
        model: Served model that answered; "" if it is not known, as for a refused request; `OTHERS` for those that
            the tenant or the day had no room for.
        usage: What the requests used.
    """

    day: date
    tenant: str
    model: str
    usage: Usage


class Ledger:
    """The ledger of one queue.

    Args:
        queue: The queue.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def rows(self, first: date, last: date, tenant: str | None = None) -> list[LedgerRow]:
        """Return the rows of some days, by day, tenant and model.

        Args:
            first: First day.
            last: Last day; before `first` there are no days.
            tenant: The only tenant to return; None for all.
        """
        days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
        return [row for day in days for row in await self._read(day, tenant)]

    async def today(self) -> date:
        """Return the UTC day by Redis' clock, which dates the rows."""
        ((seconds, _),) = await read_together(self._queue, ("TIME",))
        return datetime.fromtimestamp(int(seconds), UTC).date()

    async def _read(self, day: date, tenant: str | None) -> list[LedgerRow]:
        """Return the rows of a day. MATCH lets Redis send only those of the tenant, unless it is `OTHERS`."""
        key = self._queue.keys.usage((day - _EPOCH).days)
        pages = self._queue.redis.hscan_iter(key, f"{tenant or '*'}|*", count=FIELDS_A_CALL)
        by_field = {field: _row(day, field, value) async for field, value in pages}
        found = (row for row in by_field.values() if tenant in (None, row.tenant))
        return sorted(found, key=lambda row: (row.tenant, row.model))


def _row(day: date, field: bytes, value: bytes) -> LedgerRow:
    tenant, _, model = field.decode(errors="replace").partition("|")
    return LedgerRow(day, tenant, model, Usage.parse(value))

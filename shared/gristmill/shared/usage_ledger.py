"""Read the ledger: what each tenant used of each model on each UTC day. `lua/ack.lua` writes it.

`gristmill usage`, the gateway and the budgets of tenants call it.
"""

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple, Self

from gristmill.shared.chunking import chunks
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
        key = _key(self._queue, day)
        pages = self._queue.redis.hscan_iter(key, f"{tenant or '*'}|*", count=FIELDS_A_CALL)
        by_field = {field: _row(day, field, value) async for field, value in pages}
        found = (row for row in by_field.values() if tenant in (None, row.tenant))
        return sorted(found, key=lambda row: (row.tenant, row.model))


class DayTokens:
    """The tokens of tenants on one day, for whoever reads them again and again.

    The first read of a tenant looks at all fields of the day. A later one asks for the tenants' own fields, unless the
    day has got a new field since.

    Args:
        queue: The queue.
        day: The UTC day.
    """

    def __init__(self, queue: Queue, day: date) -> None:
        self._queue = queue
        self._day = day
        self._num_fields = -1
        self._fields: dict[str, list[str]] = {}

    async def read(self, tenants: Set[str]) -> Counter[str]:
        """Return the prompt and output tokens of some tenants."""
        key = _key(self._queue, self._day)
        fields = [(name, field) for name in tenants for field in self._fields.get(name, ())]
        asked = [("HMGET", key, *(field for _, field in some)) for some in chunks(fields, FIELDS_A_CALL)]  # fmt: skip
        num_fields, *pages = await read_together(self._queue, ("HLEN", key), *asked)
        values = [value for page in pages for value in page]
        is_known = num_fields == self._num_fields and tenants <= self._fields.keys()
        if not is_known or None in values:
            return await self._scan(num_fields, tenants)
        tokens: Counter[str] = Counter()
        for (name, _), value in zip(fields, values, strict=True):
            tokens[name] += Usage.parse(value).num_tokens
        return tokens

    async def _scan(self, num_fields: int, tenants: Set[str]) -> Counter[str]:
        if num_fields != self._num_fields:
            self._num_fields, self._fields = num_fields, {}
        self._fields |= {name: [] for name in tenants}
        tokens: Counter[str] = Counter()
        only = next(iter(tenants)) if len(tenants) == 1 else None
        for row in await Ledger(self._queue).rows(self._day, self._day, only):
            if row.tenant in tenants:
                tokens[row.tenant] += row.usage.num_tokens
                self._fields[row.tenant].append(f"{row.tenant}|{row.model}")
        return tokens


def _key(queue: Queue, day: date) -> str:
    return queue.keys.usage((day - _EPOCH).days)


def _row(day: date, field: bytes, value: bytes) -> LedgerRow:
    tenant, _, model = field.decode(errors="replace").partition("|")
    return LedgerRow(day, tenant, model, Usage.parse(value))

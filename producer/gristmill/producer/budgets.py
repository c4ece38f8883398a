"""The token budgets of tenants: the tokens that a tenant used in all queues, and whether its budget is used up.

The gateway asks before each submit, a steward once a second for each batch. The ledgers of the queues count a request
when it ends, and a process reads them every `FRESH_S`. So a tenant may exceed its budget by the requests that have not
ended, and by those that ended since the last read.
"""

import asyncio
import time
from collections import Counter
from datetime import date, timedelta
from math import inf
from typing import NamedTuple

from gristmill.producer.noted_queues import noted_queues
from gristmill.producer.tenants import Tenant
from gristmill.shared.chunking import chunks
from gristmill.shared.errors import BudgetUsedUp
from gristmill.shared.queue import Queue
from gristmill.shared.usage_ledger import DayTokens, Ledger

FRESH_S = 2.0
"""Seconds until the tokens are read again: one command for each queue, for all tenants together."""

ASKED_S = 60.0
"""Seconds since the last call for a tenant after which its tokens are read no more."""

QUEUES_AT_ONCE = 16
"""Queues that are read at the same time; each takes a connection."""


class TokenUse(NamedTuple):
    """Prompt and output tokens that a tenant used in all queues.

    Attributes:
        today: The UTC day by Redis' clock.
        tokens_today: Tokens of this day.
        tokens_this_month: Tokens of this calendar month.
    """

    today: date
    tokens_today: int
    tokens_this_month: int


class Budgets:
    """The token budgets of the tenants, in all queues that a gateway or steward has served.

    Args:
        queue: A queue of the Redis. Its tokens count even if it is not in the list of queues.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._uses: dict[str, TokenUse] = {}
        self._asked_s: dict[str, float] = {}
        self._read_s = -inf
        self._reading: asyncio.Task[None] | None = None
        self._today = date.min
        self._days: dict[str, DayTokens] = {}
        self._earlier: dict[tuple[str, str], int] = {}

    async def use_of(self, tenant: str) -> TokenUse:
        """Return what a tenant used, as of the last `FRESH_S` seconds."""
        self._asked_s[tenant] = time.monotonic()
        if tenant not in self._uses or time.monotonic() - self._read_s >= FRESH_S:
            await self._join_read()
        if tenant not in self._uses:  # the read that this call joined had begun without the tenant
            await self._join_read()
        return self._uses[tenant]

    async def check(self, tenant: Tenant) -> None:
        """Check that a tenant has tokens left.

        Raises:
            BudgetUsedUp: The budget of the day or of the month is used up; the message says when it renews.
        """
        if not tenant.tokens_per_day and not tenant.tokens_per_month:
            return
        today, tokens_today, tokens_this_month = await self.use_of(tenant.name)
        next_month = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
        for name, used, limit, renews in (
            ("tokens_per_month", tokens_this_month, tenant.tokens_per_month, next_month),
            ("tokens_per_day", tokens_today, tenant.tokens_per_day, today + timedelta(days=1)),
        ):
            if limit and used >= limit:
                raise BudgetUsedUp(
                    f"tenant {tenant.name} used {used:,} of {limit:,} tokens ({name}); the budget renews at"
                    f" {renews}T00:00:00Z, or ask the operator to raise it"
                )

    async def _join_read(self) -> None:
        """Wait for the read that is running, or begin one."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="gristmill-budgets")
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        """Read the tokens of the tenants that somebody asked for within `ASKED_S`."""
        since_s = time.monotonic() - ASKED_S
        self._asked_s = {name: at_s for name, at_s in self._asked_s.items() if at_s > since_s}
        tenants = set(self._asked_s)
        today = await Ledger(self._queue).today()
        if today != self._today:
            self._today, self._days, self._earlier = today, {}, {}
        own = self._queue.keys.queue
        sums = dict.fromkeys(tenants, (0, 0))
        for names in chunks(sorted({own} | await noted_queues(self._queue.redis)), QUEUES_AT_ONCE):
            found = await asyncio.gather(*(self._tokens(name, tenants) for name in names))
            for tokens in found:
                sums = {name: (now + tokens[name][0], month + tokens[name][1]) for name, (now, month) in sums.items()}  # fmt: skip
        self._uses = {name: TokenUse(today, now, month) for name, (now, month) in sums.items()}
        self._read_s = time.monotonic()

    async def _tokens(self, name: str, tenants: set[str]) -> dict[str, tuple[int, int]]:
        """Return the tokens of tenants in one queue: those of today, and those of this month."""
        queue = Queue(self._queue.redis, name)
        if name not in self._days:
            self._days[name] = DayTokens(queue, self._today)
        tokens = await self._days[name].read(tenants)
        if new := {tenant for tenant in tenants if (name, tenant) not in self._earlier}:
            earlier = await self._tokens_before(queue, new)
            self._earlier |= {(name, tenant): earlier[tenant] for tenant in new}
        return {
            tenant: (tokens[tenant], self._earlier[name, tenant] + tokens[tenant])
            for tenant in tenants
        }

    async def _tokens_before(self, queue: Queue, tenants: set[str]) -> Counter[str]:
        """Return the tokens of this month before today. They no longer change, so one read a day is enough."""
        first, yesterday = self._today.replace(day=1), self._today - timedelta(days=1)
        only = next(iter(tenants)) if len(tenants) == 1 else None
        tokens: Counter[str] = Counter()
        for row in await Ledger(queue).rows(first, yesterday, only):
            tokens[row.tenant] += row.usage.num_tokens
        return tokens

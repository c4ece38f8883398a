"""The token budgets of tenants: what they used of them, and whether they are used up.

The gateway asks before each submit, a steward once a second for each batch. The ledger has the tokens of requests that
have ended. So a tenant may exceed its budget by its requests in the queue, and by those of the last `FRESH_S`.
"""

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import date, timedelta
from math import inf
from typing import NamedTuple

from gristmill.producer.tenants import Tenant
from gristmill.shared.errors import BudgetUsedUp
from gristmill.shared.queue import Queue
from gristmill.shared.usage_ledger import Ledger

FRESH_S = 2.0
"""Seconds for which the tokens of a tenant count as known. A read takes Redis up to 2 ms on a full day."""


class TokenUse(NamedTuple):
    """Prompt and output tokens that a tenant used.

    Attributes:
        today: The UTC day by Redis' clock.
        tokens_today: Tokens of this day.
        tokens_this_month: Tokens of this calendar month.
    """

    today: date
    tokens_today: int
    tokens_this_month: int


_NEVER_READ = TokenUse(date.min, 0, 0)


@dataclass(slots=True)
class _Known:
    """What is known of one tenant.

    Attributes:
        lock: Held by the call that reads; others at the same time wait for what it finds.
        use: What it found.
        read_s: When, on the monotonic clock.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    use: TokenUse = _NEVER_READ
    read_s: float = -inf


class Budgets:
    """The token budgets of the tenants in one queue.

    Args:
        queue: The queue; each queue counts on its own.
    """

    def __init__(self, queue: Queue) -> None:
        self._ledger = Ledger(queue)
        self._known = defaultdict[str, _Known](_Known)

    async def use_of(self, tenant: str) -> TokenUse:
        """Return what a tenant used, as of the last `FRESH_S` seconds."""
        known = self._known[tenant]
        async with known.lock:
            if time.monotonic() - known.read_s >= FRESH_S:
                known.use = await self._read(tenant, known.use)
                known.read_s = time.monotonic()
        return known.use

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

    async def _read(self, tenant: str, known: TokenUse) -> TokenUse:
        today = await self._ledger.today()
        earlier = known.tokens_this_month - known.tokens_today
        if today != known.today:
            yesterday = today - timedelta(days=1)
            earlier = await self._tokens(tenant, today.replace(day=1), yesterday)
        tokens_today = await self._tokens(tenant, today, today)
        return TokenUse(today, tokens_today, earlier + tokens_today)

    async def _tokens(self, tenant: str, first: date, last: date) -> int:
        rows = await self._ledger.rows(first, last, tenant)
        return sum(row.usage.num_tokens for row in rows)

"""The token budgets of tenants: what they used of them, and whether they are used up.

The gateway asks before each submit, a steward once a second for each batch. The ledger has the tokens of requests that
have ended. So a tenant may exceed its budget by its requests in the queue, and by those of the last `FRESH_S`.
"""

import time
from collections import Counter
from collections.abc import Mapping
from datetime import date, timedelta
from typing import NamedTuple

from gristmill.producer.tenants import Tenant
from gristmill.shared.errors import BudgetUsedUp
from gristmill.shared.queue import Queue
from gristmill.shared.usage_ledger import Ledger

FRESH_S = 2.0
"""Seconds for which the tokens of today count as known; all tenants of a process share one read of them."""


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


class Budgets:
    """The token budgets of the tenants in one queue.

    Args:
        queue: The queue; each queue counts on its own.
    """

    def __init__(self, queue: Queue) -> None:
        self._ledger = Ledger(queue)
        self._today = date.min
        self._of_today: Mapping[str, int] = {}
        self._earlier: Mapping[str, int] = {}  # of the month, up to yesterday
        self._read_s = -FRESH_S

    async def use_of(self, tenant: str) -> TokenUse:
        """Return what a tenant used, as of the last `FRESH_S` seconds."""
        if time.monotonic() - self._read_s >= FRESH_S:
            await self._read()
        tokens_today = self._of_today.get(tenant, 0)
        return TokenUse(self._today, tokens_today, tokens_today + self._earlier.get(tenant, 0))

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

    async def _read(self) -> None:
        today = await self._ledger.today()
        if today != self._today:
            yesterday = today - timedelta(days=1)
            self._earlier = await self._tokens(today.replace(day=1), yesterday)
        self._of_today = await self._tokens(today, today)
        self._today, self._read_s = today, time.monotonic()

    async def _tokens(self, first: date, last: date) -> Counter[str]:
        tokens = Counter[str]()
        for row in await self._ledger.rows(first, last):
            tokens[row.tenant] += row.usage.num_tokens
        return tokens

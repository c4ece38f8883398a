"""Batches as clients see them: with what their records in Redis do not say."""

from collections.abc import Sequence

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.child_batches import with_totals
from gristmill.producer.batches.objects import BatchError, BatchRecord
from gristmill.shared.errors import BudgetUsedUp


async def as_shown(store: BatchStore, records: Sequence[BatchRecord]) -> Sequence[BatchRecord]:
    """Return batches with `waiting`, and with `cancelling` as the status of a cancelled one that has not stopped yet.

    A batch of several queues has the counts, tokens and device time of its children.
    """
    records = [await with_totals(store, record) for record in records]
    running = {record.tenant for record in records if _is_running(record)}
    waits = {tenant: await wait_of(store, tenant) for tenant in sorted(running)}
    return [shown(record, waits.get(record.tenant)) for record in records]


def shown(record: BatchRecord, wait: BatchError | None = None) -> BatchRecord:
    """Return one batch as `as_shown` does, if its tenant waits for this reason."""
    is_running = _is_running(record)
    if is_running and record.cancelling_at:
        return record.model_copy(update={"status": "cancelling", "waiting": None})
    return record.model_copy(update={"waiting": wait if is_running else None})


def _is_running(record: BatchRecord) -> bool:
    return record.status in ("validating", "in_progress")


async def wait_of(store: BatchStore, tenant: str) -> BatchError | None:
    """Return why the batches of a tenant submit no further lines, or None."""
    known = await store.tenants.get(tenant)
    try:
        if known:
            await store.budgets.check(known)
    except BudgetUsedUp as error:
        return BatchError(code="token_budget_used_up", message=str(error))
    return None

"""End a child, and give its parent the outcome of its children; `finalization.py` calls it."""

import asyncio
import time
from collections.abc import Sequence

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.child_batches import (
    ChildBatch,
    add_totals,
    child_id,
    for_each,
    parent_id,
    records_of,
)
from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.batches.objects import BatchError, BatchErrors, BatchRecord, Closing
from gristmill.producer.batches.parts import parts_folder
from gristmill.shared.pauses import batch_scope


async def end_child(store: BatchStore, leased: LeasedBatch) -> None:
    """End a child that has all its rows, and wake its parent. The parent joins the rows of its children."""
    record = leased.record
    status = record.closing or "completed"
    ended = record.model_copy(update={"status": status, f"{status}_at": int(time.time())})
    await leased.commit(ended, leased.state.checkpoint)
    if record.home:
        home = store.of_queue(record.home)
        await home.due.wake("files", record.tenant, parent_id(record.id))


def with_outcome(record: BatchRecord, children: Sequence[ChildBatch]) -> BatchRecord:
    """Return a parent with the totals and errors of its children and its final status. All children are over."""
    errors = _errors_of(children)
    update = {
        "closing": _closing(record, children),
        "errors": BatchErrors(data=errors) if errors else None,
    }
    return add_totals(record, records_of(children)).model_copy(update=update)


def _errors_of(children: Sequence[ChildBatch]) -> tuple[BatchError, ...]:
    """Return one error for each purged queue, and each other code once: such an error is that of the tenant or file."""
    purged: list[BatchError] = []
    others: dict[str, BatchError] = {}
    for child in children:
        if child.state is None:
            message = (
                f"queue {child.queue} was purged, so that the lines of its models have no rows"
            )
            purged.append(BatchError(code="queue_purged", message=message))
        elif errors := child.state.record.errors:
            others |= {error.code: error for error in errors.data if error.code not in others}
    return (*purged, *others.values())


def _closing(record: BatchRecord, children: Sequence[ChildBatch]) -> Closing:
    """Return the final status of a parent: the first of `order` that a child has, else completed.

    A cancelled batch is `cancelled` if the cancel ended at least one child.
    """
    statuses = {child.state.record.status if child.state else "failed" for child in children}
    order: tuple[Closing, ...] = ("failed", "expired", "cancelled")
    if record.cancelling_at:
        order = ("cancelled", "failed", "expired")
    return next((status for status in order if status in statuses), "completed")


async def delete_parts_of_children(store: BatchStore, record: BatchRecord) -> None:
    """Delete the parts of a batch's children. Its files have their rows by now.

    The record of a child stays as long as that of the parent: a steward that was away for minutes finds it, and does
    not create the child again.
    """

    async def delete(queue: str) -> None:
        other, child = store.of_queue(queue), child_id(record.id, queue)
        await asyncio.to_thread(store.storage.delete_folder, parts_folder(child))
        await other.records.forget_parts(record.tenant, child)
        await other.queue.pauses.resume(batch_scope(child))  # a pause may have come after its end
        await other.records.expire(child, store.settings.batch_ttl_s)

    await for_each(delete, record.children)

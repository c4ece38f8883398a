"""Follow the children of a batch: create them, pass on a cancel, and begin to join their rows once all have ended.

The steward of the parent's queue does this; the stewards of the other queues run the children as any batch. Nothing
touches two queues in one step, so each step may be done again:

- The commit that ends validation has the plan of every child. A child is created once under its id, from this plan.
- A child that has ended keeps its parts until its parent has ended, and its record as long as that of its parent.
- Its steward wakes the parent. A steward that dies before costs `LOOK_S`.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from gristmill.producer.batches.batch_state import Checkpoint, ChildLines
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.child_batches import (
    ChildBatch,
    child_id,
    children_of,
    parent_id,
    summed,
)
from gristmill.producer.batches.lifecycle.leased_batch import LEASE_S, LeasedBatch
from gristmill.producer.batches.objects import (
    BatchError,
    BatchErrors,
    BatchRecord,
    BatchUsage,
    Closing,
    RequestCounts,
)
from gristmill.producer.batches.parts import parts_folder
from gristmill.shared.pauses import batch_scope

LOOK_S = 30.0
"""Seconds between two looks at the children of a batch; a child that ends wakes its parent before."""

PLAN_S = 60.0
"""Seconds for which a parent creates a child again that is missing: the Redis of its queue may have lost its last
moments. A child that is missing later was purged."""

OVERDUE_S = LEASE_S
"""Seconds from a cancel, or from the end of the completion window, until the parent's steward ends a child itself: the
queue of the child may have no steward."""

Advance = Callable[[BatchStore, str], Coroutine[Any, Any, None]]
"""Function that does the next step of a batch."""


async def follow(store: BatchStore, leased: LeasedBatch, advance: Advance) -> None:
    """Look at the children of a batch once, and do what is to do for them.

    Args:
        store: The batches of the parent's queue.
        leased: The parent.
        advance: Ends a child whose own steward does not.
    """
    record = leased.record
    delay_s = OVERDUE_S if leased.state.is_cancelled else LOOK_S
    # Before the look: a child that ends after it makes the parent due at once.
    await store.due.wake("files", record.tenant, record.id, delay_s)
    for queue, lines in leased.state.checkpoint.planned.items():
        await _create_child(store, leased.record, queue, lines)
    children = await children_of(store, leased.record)
    for child in children:
        if not child.is_over:
            await _end_early(leased, child, advance)
    await _commit_look(leased, children)


async def _create_child(
    store: BatchStore, parent: BatchRecord, queue: str, lines: ChildLines
) -> None:
    """Create the child of a queue, unless it exists; it is paused if its parent is."""
    other, child = (
        store.of_queue(queue),
        _child_record(parent, queue, lines, store.queue.keys.queue),
    )
    pause = await store.queue.pauses.of(batch_scope(parent.id))
    if pause:
        await other.queue.pauses.pause(batch_scope(child.id), pause.by, pause.reason)
    await other.records.create_child(child, Checkpoint(skipped=lines.skipped))
    if pause and not await store.queue.pauses.of(batch_scope(parent.id)):  # resumed meanwhile
        await other.queue.pauses.resume(batch_scope(child.id))


async def _commit_look(leased: LeasedBatch, children: Sequence[ChildBatch]) -> None:
    """Begin to join the rows once all children are over; drop the plan once no child can get lost any more."""
    record, checkpoint = leased.record, replace(leased.state.checkpoint, planned={})
    if all(child.is_over for child in children):
        update = {"status": "finalizing", "finalizing_at": int(time.time())}
        await leased.commit(record.model_copy(update=update), checkpoint)
    elif leased.state.checkpoint.planned and time.time() > (record.in_progress_at or 0) + PLAN_S:
        await leased.commit(record, checkpoint)


def _child_record(parent: BatchRecord, queue: str, plan: ChildLines, home: str) -> BatchRecord:
    own = {
        "id": child_id(parent.id, queue), "home": home, "children": (), "queues": (), "declared": {},
        "request_counts": RequestCounts(total=plan.num_lines), "usage": BatchUsage(), "device_ms": 0,
        "warnings": None, "order": "completion", "cancelling_at": None,
    }  # fmt: skip
    return parent.model_copy(update=own)


async def _end_early(leased: LeasedBatch, child: ChildBatch, advance: Advance) -> None:
    """Pass a cancel on to a child; end the child here if its own steward does not in time."""
    if child.state is None:
        return
    record = child.state.record
    if leased.state.is_cancelled and not child.state.is_cancelled:
        await child.store.records.mark_cancelled(child.id)
        await child.store.due.wake("steps", record.tenant, child.id)
        return
    end_s = min(record.expires_at, record.cancelling_at or record.expires_at)
    if time.time() > end_s + OVERDUE_S:
        for _ in ("execute", "finalize"):
            await leased.run(advance(child.store, child.id))


async def end_child(store: BatchStore, leased: LeasedBatch) -> None:
    """End a child that has all its rows, and wake its parent, which joins them."""
    record = leased.record
    status = record.closing or "completed"
    ended = record.model_copy(update={"status": status, f"{status}_at": int(time.time())})
    await leased.commit(ended, leased.state.checkpoint)
    if record.home:
        home = store.of_queue(record.home)
        await home.due.wake("files", record.tenant, parent_id(record.id))


def concluded(record: BatchRecord, children: Sequence[ChildBatch]) -> BatchRecord:
    """Return a parent whose children are over, with their sums and errors, and the status with which it ends."""
    errors = [error for child in children for error in _errors_of(child)]
    update = {
        "closing": _closing(record, children),
        "errors": BatchErrors(data=tuple(errors)) if errors else None,
    }
    return summed(record, children).model_copy(update=update)


def _errors_of(child: ChildBatch) -> Sequence[BatchError]:
    if child.state is None:
        message = f"queue {child.queue} was purged, so that the lines of its models have no rows"
        return [BatchError(code="queue_purged", message=message)]
    errors = child.state.record.errors
    return errors.data if errors else ()


def _closing(record: BatchRecord, children: Sequence[ChildBatch]) -> Closing:
    """Return the status of a parent: cancelled if a cancel ended lines, else the worst of its children."""
    statuses = {child.state.record.status if child.state else "failed" for child in children}
    order: tuple[Closing, ...] = ("failed", "expired", "cancelled")
    if record.cancelling_at:
        order = ("cancelled", "failed", "expired")
    return next((status for status in order if status in statuses), "completed")


async def delete_children(store: BatchStore, record: BatchRecord) -> None:
    """Delete the parts of the children of a batch, whose rows its files have.

    The records stay as long as that of the parent. So a steward that was away cannot create a child again.
    """
    for queue in record.children:
        other, child = store.of_queue(queue), child_id(record.id, queue)
        await asyncio.to_thread(store.storage.delete_folder, parts_folder(child))
        await other.records.forget_parts(record.tenant, child)
        await other.records.expire(child, store.settings.batch_ttl_s)

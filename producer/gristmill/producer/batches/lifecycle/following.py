"""Follow the children of a batch: create them, pass on a cancel, and begin to join their rows once all have ended.

A steward of the home queue does this for the parent. The stewards of the other queues run the children like any batch.
No commit spans two queues, so a steward may die between two steps. The next steward does the step again:

- The commit that ends validation stores the plan of every child. A child is created from its plan. A second creation
  under the same id changes nothing.
- A child that has ended keeps its parts until its parent has ended, and its record as long as that of its parent.
- The steward that ends a child wakes the parent. If it dies just before, the parent looks again after `LOOK_S`.
"""

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from gristmill.producer.batches.batch_state import Checkpoint, ChildPlan
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.child_batches import ChildBatch, child_id, children_of
from gristmill.producer.batches.lifecycle.leased_batch import LEASE_S, LeasedBatch
from gristmill.producer.batches.objects import BatchRecord, BatchUsage, RequestCounts
from gristmill.shared.pauses import batch_scope

LOOK_S = 30.0
"""Seconds until a parent looks at its children again; a child that ends wakes it earlier."""

PLAN_S = 60.0
"""Seconds from the split in which a parent creates a missing child again: a failover of Redis may have lost it. A child
that is missing later was purged."""

OVERDUE_S = LEASE_S
"""Seconds after a cancel, or after the end of the completion window, when the parent's steward ends a child itself. The
queue of the child may have no steward."""

Advance = Callable[[BatchStore, str], Coroutine[Any, Any, None]]
"""Function that does the next step of a batch."""


async def follow(store: BatchStore, leased: LeasedBatch, advance: Advance) -> None:
    """Look at the children of a batch once: create missing ones, end late ones, and begin the join if all are over.

    Args:
        store: The batches of the parent's queue.
        leased: The parent.
        advance: Does a step of a child whose own steward is late.
    """
    record = leased.record
    delay_s = OVERDUE_S if leased.state.is_cancelled else LOOK_S
    # Set before the look, so that a child which ends during the look can still make the parent due at once.
    await store.due.wake("files", record.tenant, record.id, delay_s)
    for queue, plan in leased.state.checkpoint.planned.items():
        await _create_child(store, record, queue, plan)
    children = await children_of(store, record)
    for child in children:
        if not child.is_over:
            await _end_early(leased, child, advance)
    await _begin_join(leased, children)


async def _create_child(
    store: BatchStore, parent: BatchRecord, queue: str, plan: ChildPlan
) -> None:
    """Create the child of a queue, unless it exists. It is paused if its parent is."""
    other = store.of_queue(queue)
    child = _child_record(parent, queue, plan, store.queue.keys.queue)
    pauses, scope = store.queue.pauses, batch_scope(parent.id)
    pause = await pauses.of(scope)
    if pause:
        await other.queue.pauses.pause(batch_scope(child.id), pause.by, pause.reason)
    await other.records.create_child(child, Checkpoint(skipped=plan.skipped))
    if pause and not await pauses.of(scope):  # a client has resumed the parent since
        await other.queue.pauses.resume(batch_scope(child.id))


async def _begin_join(leased: LeasedBatch, children: Sequence[ChildBatch]) -> None:
    """Make a parent `finalizing` once all its children are over; drop the plans of the children after `PLAN_S`."""
    record, checkpoint = leased.record, replace(leased.state.checkpoint, planned={})
    if all(child.is_over for child in children):
        update = {"status": "finalizing", "finalizing_at": int(time.time())}
        await leased.commit(record.model_copy(update=update), checkpoint)
    elif leased.state.checkpoint.planned and time.time() > (record.in_progress_at or 0) + PLAN_S:
        await leased.commit(record, checkpoint)


def _child_record(parent: BatchRecord, queue: str, plan: ChildPlan, home: str) -> BatchRecord:
    """Return the record of a new child: that of its parent, without what is the parent's own."""
    own = {
        "id": child_id(parent.id, queue), "home": home, "children": (), "queues": (), "declared": {},
        "request_counts": RequestCounts(total=plan.num_lines), "usage": BatchUsage(), "device_ms": 0,
        "warnings": None, "order": "completion", "cancelling_at": None,
    }  # fmt: skip
    return parent.model_copy(update=own)


async def _end_early(leased: LeasedBatch, child: ChildBatch, advance: Advance) -> None:
    """Pass a cancel on to a child; do its steps here if its own steward is late by `OVERDUE_S`."""
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

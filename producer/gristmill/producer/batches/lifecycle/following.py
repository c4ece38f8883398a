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
from functools import partial
from typing import Any

from gristmill.producer.batches.batch_state import Checkpoint, ChildPlan
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.child_batches import (
    ChildBatch,
    child_id,
    children_of,
    for_each,
)
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

ENDS_AT_ONCE = 4
"""Children that the parent's steward ends at the same time. Each may hold a buffer of rows in memory."""

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
    await _begin_join(leased, await leased.run(_look(store, leased, advance)))


async def _look(store: BatchStore, leased: LeasedBatch, advance: Advance) -> Sequence[ChildBatch]:
    """Create the children that are planned, end those whose time is over, and return all as they were between."""
    plans = leased.state.checkpoint.planned.items()
    await for_each(partial(_create_child, store, leased.record), plans)
    children = await children_of(store, leased.record)
    running = [child for child in children if not child.is_over]
    await for_each(partial(_end_early, leased, advance), running, ENDS_AT_ONCE)
    return children


async def _create_child(
    store: BatchStore, parent: BatchRecord, plan: tuple[str, ChildPlan]
) -> None:
    """Create the child of a queue, unless it exists; it is paused if its parent is."""
    queue, lines = plan
    other = store.of_queue(queue)
    child = _child_record(parent, queue, lines, store.queue.keys.queue)
    await _pass_pause_on(store, parent.id, other, child.id)
    await other.records.create_child(child, Checkpoint(child_lines=lines))
    await _pass_pause_on(store, parent.id, other, child.id)


async def _pass_pause_on(store: BatchStore, parent: str, other: BatchStore, child: str) -> None:
    """Pause or resume a child as its parent is, until the parent has not changed meanwhile."""
    is_same = False
    while not is_same:
        pause = await store.queue.pauses.of(batch_scope(parent))
        if pause:
            await other.queue.pauses.pause(batch_scope(child), pause.by, pause.reason)
        else:
            await other.queue.pauses.resume(batch_scope(child))
        is_same = await store.queue.pauses.of(batch_scope(parent)) == pause


async def _begin_join(leased: LeasedBatch, children: Sequence[ChildBatch]) -> None:
    """Make a parent `finalizing` once all its children are over; drop the plans of the children after `PLAN_S`."""
    record, checkpoint = leased.record, replace(leased.state.checkpoint, planned={})
    if all(child.is_over for child in children):
        update = {"status": "finalizing", "finalizing_at": int(time.time())}
        await leased.commit(record.model_copy(update=update), checkpoint)
    elif leased.state.checkpoint.planned and time.time() > (record.in_progress_at or 0) + PLAN_S:
        await leased.commit(record, checkpoint)


def _child_record(parent: BatchRecord, queue: str, plan: ChildPlan, home: str) -> BatchRecord:
    own = {
        "id": child_id(parent.id, queue), "home": home, "children": (), "queues": (), "declared": {},
        "request_counts": RequestCounts(total=plan.num_lines), "usage": BatchUsage(), "device_ms": 0,
        "warnings": None, "order": "completion", "cancelling_at": None,
    }  # fmt: skip
    return parent.model_copy(update=own)


async def _end_early(leased: LeasedBatch, advance: Advance, child: ChildBatch) -> None:
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
            await advance(child.store, child.id)

"""Children: the batches that run the lines of a batch of several queues, one child in each queue.

A batch whose lines name models of other queues is a parent. It stays in the home queue, which has the files. Each child
is a batch `<parent>@<queue>` that reads the same input and runs the lines of its queue. Lists, limits and clients see
only the parent. No commit spans two queues: `lifecycle/following.py` says why no line is lost all the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from gristmill.producer.batches.batch_state import BatchState
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.objects import BatchRecord, RequestCounts
from gristmill.shared.errors import NotFound

COUNTS = ("completed", "failed", "cancelled", "expired")
"""Counts to which those of the children are added. `total` is not among them: validation has counted all lines."""


AT_ONCE = 16
"""Children that one process reads or changes at the same time: a Redis with 30 ms of latency then needs 2 s for a step
of 1,000 children."""

T = TypeVar("T")
R = TypeVar("R")


class ChildBatch(NamedTuple):
    """One child of a parent.

    Attributes:
        store: The batches of its queue.
        id: Its id.
        state: Its state as it was read; None if it does not exist yet, or its queue was purged.
    """

    store: BatchStore
    id: str
    state: BatchState | None

    @property
    def queue(self) -> str:
        """Name of its queue."""
        return self.store.queue.keys.queue

    @property
    def is_over(self) -> bool:
        """True once it has ended or was purged."""
        return self.state is None or self.state.record.is_final


def child_id(parent: str, queue: str) -> str:
    """Return the id of the child of a parent in a queue."""
    return f"{parent}@{queue}"


def parent_id(child: str) -> str:
    """Return the id of the parent of a child."""
    return child.rpartition("@")[0]


async def for_each(
    do: Callable[[T], Awaitable[R]], items: Iterable[T], at_once: int = AT_ONCE
) -> list[R]:
    """Call a function for each item, some at the same time. An error keeps no other item from its call.

    Args:
        do: The function.
        items: The items.
        at_once: Most calls at the same time.

    Returns:
        What the calls returned, in the order of the items.

    Raises:
        Exception: The first error, once all calls have ended.
    """
    turns = asyncio.Semaphore(at_once)

    async def in_turn(item: T) -> R:
        async with turns:
            return await do(item)

    ended = await asyncio.gather(*map(in_turn, items), return_exceptions=True)
    results: list[R] = []
    for found in ended:
        if isinstance(found, BaseException):
            raise found
        results.append(found)
    return results


async def children_of(store: BatchStore, record: BatchRecord) -> Sequence[ChildBatch]:
    """Read the children of a batch.

    Args:
        store: The batches of its queue.
        record: The batch.

    Returns:
        One child for each queue of `record.children`, with or without a state.
    """

    async def read(queue: str) -> ChildBatch:
        other, batch, state = store.of_queue(queue), child_id(record.id, queue), None
        with suppress(NotFound):
            state = await other.records.state(batch)
        return ChildBatch(other, batch, state)

    return await for_each(read, record.children)


async def with_totals(store: BatchStore, record: BatchRecord) -> BatchRecord:
    """Return a batch as clients see it: with the counts, tokens and device time of its children added."""
    if not record.children or record.is_final:
        return record
    return add_totals(record, records_of(await children_of(store, record)))


def records_of(children: Iterable[ChildBatch]) -> Sequence[BatchRecord]:
    """Return the records of those children that exist."""
    return [child.state.record for child in children if child.state]


def add_totals(record: BatchRecord, children: Iterable[BatchRecord]) -> BatchRecord:
    """Return a parent with the counts, tokens and device time of its children added to its own."""
    counts, usage, device_ms = record.request_counts.model_dump(), record.usage, record.device_ms
    for child in children:
        for name in COUNTS:
            counts[name] += getattr(child.request_counts, name)
        usage = usage.plus(child.usage)
        device_ms += child.device_ms
    update = {"request_counts": RequestCounts(**counts), "usage": usage, "device_ms": device_ms}
    return record.model_copy(update=update)

"""Children: batches that run the lines of one batch, each in its own queue.

A batch whose lines name models of other queues is a parent. It stays in its own queue with the files. Each child is a
batch `<parent>@<queue>` that reads the same input and runs the lines of its queue. Lists, limits and clients see the
parent alone. Nothing touches two queues in one step: `lifecycle/following.py` says why that loses nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from gristmill.producer.batches.batch_state import BatchState
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.objects import BatchRecord, RequestCounts
from gristmill.producer.batches.parts import Part, RowKind
from gristmill.producer.batches.rows import ID_PREFIX
from gristmill.producer.batches.storage import COPY_BYTES, Storage
from gristmill.shared.errors import NotFound

COUNTS = ("completed", "failed", "cancelled", "expired")
"""Counts to which those of the children are added. The `total` of a parent has all lines already."""


class ChildBatch(NamedTuple):
    """One child of a parent.

    Attributes:
        store: The batches of its queue.
        id: Its id.
        state: Its state as it was read; None before it exists, and after a purge of its queue.
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
        """True once it has ended, or is gone."""
        return self.state is None or self.state.record.is_final


def child_id(parent: str, queue: str) -> str:
    """Return the id of the child of a parent in a queue."""
    return f"{parent}@{queue}"


def parent_id(child: str) -> str:
    """Return the id of the parent of a child."""
    return child.rpartition("@")[0]


async def children_of(store: BatchStore, record: BatchRecord) -> Sequence[ChildBatch]:
    """Read the children of a batch.

    Args:
        store: The batches of its queue.
        record: The batch.

    Returns:
        One for each queue of `record.children`, also for a child that does not exist.
    """
    found = []
    for queue in record.children:
        other, batch, state = store.of_queue(queue), child_id(record.id, queue), None
        with suppress(NotFound):
            state = await other.records.state(batch)
        found.append(ChildBatch(other, batch, state))
    return found


async def as_one(store: BatchStore, record: BatchRecord) -> BatchRecord:
    """Return a batch with the counts, tokens and device time of its children, as clients see it."""
    if not record.children or record.is_final:
        return record
    return summed(record, await children_of(store, record))


def summed(record: BatchRecord, children: Sequence[ChildBatch]) -> BatchRecord:
    """Return a parent with the counts, tokens and device time of its children added to its own."""
    counts, usage, device_ms = record.request_counts.model_dump(), record.usage, record.device_ms
    for state in (child.state for child in children if child.state):
        for name in COUNTS:
            counts[name] += getattr(state.record.request_counts, name)
        usage = usage.plus(state.record.usage)
        device_ms += state.record.device_ms
    update = {"request_counts": RequestCounts(**counts), "usage": usage, "device_ms": device_ms}
    return record.model_copy(update=update)


class PartOfRun(NamedTuple):
    """A part of a batch, and the batch whose id its rows have: a child, or the batch itself."""

    run: str
    part: Part


async def parts_of_all(store: BatchStore, record: BatchRecord) -> list[PartOfRun]:
    """Return the committed parts of a batch, then those of its children."""
    found = [PartOfRun(record.id, part) for part in await store.records.parts(record.id)]
    for queue in record.children:
        run = child_id(record.id, queue)
        parts = await store.of_queue(queue).records.parts(run)
        found += [PartOfRun(run, part) for part in parts]
    return found


def rows_of_part(storage: Storage, found: PartOfRun, batch: str) -> Iterator[bytes]:
    """Yield the bytes of a part in pieces; rows of a child get the ids of its parent. Blocks on the storage.

    Args:
        storage: Storage of the parts.
        found: The part.
        batch: Id of the batch whose rows they are.
    """
    if found.run == batch:
        yield from storage.chunks(found.part.path)
        return
    before, after = _beginning(found.run), _beginning(batch)
    piece = bytearray()
    with storage.open(found.part.path) as rows:
        for row in rows:
            if not row.startswith(before):
                raise ValueError(f"a row of {found.run} begins with {row[:80]!r}, not {before!r}")
            piece += after + row[len(before) :]
            if len(piece) >= COPY_BYTES:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)


def _beginning(batch: str) -> bytes:
    return f'{{"id":"{ID_PREFIX}{batch}-'.encode()


def kinds_in(found: Sequence[PartOfRun]) -> Sequence[RowKind]:
    """Return the kinds of rows that parts have."""
    kinds: tuple[RowKind, ...] = ("output", "error")
    return [kind for kind in kinds if any(each.part.kind == kind for each in found)]

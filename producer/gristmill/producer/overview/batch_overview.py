"""Read the batches of all tenants, a page at a time, with their progress and the time left."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gristmill.producer.batches.batch_state import BatchState
from gristmill.producer.batches.child_batches import add_totals, child_id
from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.batches.shown_batches import shown
from gristmill.shared.chunking import chunks
from gristmill.shared.pauses import Pause, batch_scope
from gristmill.shared.queue import Queue
from gristmill.shared.snapshot import read_together

KEYS_A_CALL = 100
"""Tenants, or batches, that one call reads; this keeps each script near 1 ms."""

_FIELDS = ("record", "cancelling_at", "slices", "problem")
"""Fields of `batch_record:<batch>`; its checkpoint may have thousands of lines and is left out."""


@dataclass(frozen=True, slots=True)
class BatchView:
    """One batch.

    Attributes:
        queue: Its queue.
        record: The batch as clients see it, as of its last commit, with the totals of its children. It does not say
            if it waits for a token budget.
        is_begun: True once a steward took it up.
        problem: Error of the last slice if it failed, else "". It may name paths, so only operators see it.
        pause: Its pause; None if it is not paused.
        now_ms: Redis time of the read.
        children: Queue -> the child that runs its lines; None if the child has not begun or was purged.
    """

    queue: str
    record: BatchRecord
    is_begun: bool
    problem: str
    pause: Pause | None
    now_ms: int
    children: Mapping[str, BatchRecord | None] = field(default_factory=dict)

    @property
    def share_done(self) -> float:
        """Share of its lines that have a row, from 0 to 1; 0 before the lines are counted."""
        counts = self.record.request_counts
        return min(1.0, counts.finished / counts.total) if counts.total else 0.0

    @property
    def lines_per_s(self) -> float | None:
        """Lines that got a row per second since execution began, pauses included; None before the first."""
        began_at, num_finished = self.record.in_progress_at, self.record.request_counts.finished
        if not began_at or not num_finished:
            return None
        ended_at = self.record.finalizing_at or self.now_ms / 1000
        return num_finished / max(1.0, ended_at - began_at)

    @property
    def remaining_s(self) -> float | None:
        """Seconds that the other lines take at `lines_per_s`; None if nothing is known, or if the batch is paused."""
        counts, rate = self.record.request_counts, self.lines_per_s
        if self.record.status != "in_progress" or self.pause or not rate:
            return None
        return (counts.total - counts.finished) / rate


@dataclass(frozen=True, slots=True)
class BatchPage:
    """A page of batches.

    Attributes:
        batches: The batches, newest first.
        next_after: Id after which the next page begins; "" on the last page.
    """

    batches: Sequence[BatchView]
    next_after: str


async def read_batches(
    queue: Queue, tenants: Iterable[str], *, after: str = "", limit: int = 25
) -> BatchPage:
    """Return a page of the batches of some tenants, newest first.

    Takes a call for each 100 tenants, one more, and one for each child of a listed batch.

    Args:
        queue: The queue.
        tenants: Tenants whose batches to list.
        after: Last id of the page before; "" for the newest batches.
        limit: Most batches of the page, up to 100.
    """
    start = f"({after}" if after else "+"
    found: set[str] = set()
    for names in chunks(sorted(tenants), KEYS_A_CALL):
        ranges = (queue.keys.batches(name) for name in names)
        words = ("BYLEX", "REV", "LIMIT", 0, limit + 1)
        replies = await read_together(queue, *(("ZRANGE", key, start, "-", *words) for key in ranges))  # fmt: skip
        found.update(batch.decode() for ids in replies for batch in ids)
        found = set(sorted(found, reverse=True)[: limit + 1])
    ids = sorted(found, reverse=True)
    views = await _read(queue, ids[:limit])
    return BatchPage(views, ids[limit - 1] if len(ids) > limit else "")


async def read_batch(queue: Queue, batch_id: str) -> BatchView | None:
    """Return a batch of any tenant, or None."""
    found = await _read(queue, [batch_id])
    return found[0] if found else None


async def _read(queue: Queue, ids: Sequence[str]) -> list[BatchView]:
    """Return those of the batches that still exist."""
    keys = queue.keys
    (seconds, _), *replies = await read_together(
        queue,
        ("TIME",),
        *(("HMGET", keys.batch_record(batch), *_FIELDS) for batch in ids),
        *(("HGET", keys.pauses, batch_scope(batch)) for batch in ids),
    )
    pairs = zip(replies[: len(ids)], replies[len(ids) :], strict=True)
    views = [_view(keys.queue, values, note, int(seconds)) for values, note in pairs if values[0]]
    return [await _with_children(queue, view) for view in views]


async def _with_children(queue: Queue, view: BatchView) -> BatchView:
    """Return a batch with its children; their counts are added to its own until it has ended."""
    record, found = view.record, {}
    for name in record.children:
        other = Queue(queue.redis, name, queue.limits)
        key = other.keys.batch_record(child_id(record.id, name))
        (values,) = await read_together(other, ("HMGET", key, *_FIELDS))
        found[name] = _state(values).record if values[0] else None
    if not record.is_final:
        record = add_totals(record, filter(None, found.values()))
    return replace(view, record=record, children=found)


def _state(values: Sequence[Any]) -> BatchState:
    """Return the state that the values of `_FIELDS` describe."""
    pairs = zip(_FIELDS, values, strict=True)
    return BatchState.parse({name.encode(): value for name, value in pairs if value})


def _view(queue: str, values: Sequence[Any], note: bytes | None, now_s: int) -> BatchView:
    state = _state(values)
    return BatchView(
        queue=queue,
        record=shown(state.record),
        is_begun=state.num_slices > 0,
        problem=state.problem,
        pause=Pause.parse(note) if note else None,
        now_ms=now_s * 1000,
    )

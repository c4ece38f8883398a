"""The parts of a batch and of its children, read as one batch; finalization and readers of a running batch use it."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.child_batches import child_id, for_each
from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.batches.parts import Part, RowKind
from gristmill.producer.batches.rows import ID_PREFIX
from gristmill.producer.batches.storage import COPY_BYTES, Storage


class OwnedPart(NamedTuple):
    """A part, and the id of the batch that wrote it: the batch itself or one of its children."""

    writer: str
    part: Part


async def parts_of_all(store: BatchStore, record: BatchRecord) -> list[OwnedPart]:
    """Return the committed parts of a batch, then those of its children."""

    async def of_child(queue: str) -> list[OwnedPart]:
        child = child_id(record.id, queue)
        return [OwnedPart(child, part) for part in await store.of_queue(queue).records.parts(child)]

    own = [OwnedPart(record.id, part) for part in await store.records.parts(record.id)]
    return [*own, *chain.from_iterable(await for_each(of_child, record.children))]


def rows_of_part(storage: Storage, found: OwnedPart, batch: str) -> Iterator[bytes]:
    """Yield the bytes of a part in pieces. A row that a child wrote gets the id of its parent. Blocks on the storage.

    Args:
        storage: Storage of the parts.
        found: The part.
        batch: Id of the batch that clients see.

    Raises:
        ValueError: A row begins with another id than that of the batch that wrote it.
    """
    if found.writer == batch:
        yield from storage.chunks(found.part.path)
        return
    before, after = _start_of_row(found.writer), _start_of_row(batch)
    piece = bytearray()
    with storage.open(found.part.path) as rows:
        for row in rows:
            if not row.startswith(before):
                raise ValueError(
                    f"a row of {found.writer} begins with {row[:80]!r}, not {before!r}"
                )
            piece += after + row[len(before) :]
            if len(piece) >= COPY_BYTES:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)


def _start_of_row(batch: str) -> bytes:
    return f'{{"id":"{ID_PREFIX}{batch}-'.encode()


def kinds_in(found: Sequence[OwnedPart]) -> Sequence[RowKind]:
    """Return the kinds of rows in these parts."""
    kinds: tuple[RowKind, ...] = ("output", "error")
    return [kind for kind in kinds if any(each.part.kind == kind for each in found)]

"""Write the output and the error file of a batch from its parts, and delete the parts later."""

import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.child_batches import (
    ChildBatch,
    children_of,
)
from gristmill.producer.batches.joined_parts import OwnedPart, kinds_in, parts_of_all, rows_of_part
from gristmill.producer.batches.lifecycle.ended_children import (
    delete_parts_of_children,
    end_child,
    with_outcome,
)
from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.batches.objects import BatchRecord, FileRecord
from gristmill.producer.batches.parts import RowKind, parts_folder, results_folder
from gristmill.producer.batches.rows import line_of_row
from gristmill.producer.batches.storage import COPY_BYTES, Storage
from gristmill.shared.errors import NotFound


async def finalize(store: BatchStore, leased: LeasedBatch) -> None:
    """Write both files, then list them and end the batch in one commit.

    A steward that dies before the commit leaves objects that no record names. `delete_parts`
    removes them. A child has no files: its parent writes its rows.
    """
    record = leased.record
    if record.home:
        await end_child(store, leased)
        return
    children = await leased.run(children_of(store, record))
    while True:
        new_files, num_rows = await _write_files(store, leased, children)
        lacking = {child.id for child in children if not _is_whole(child, num_rows)}
        if not lacking:
            break
        children = [each._replace(state=None) if each.id in lacking else each for each in children]
    if children:
        record = with_outcome(record, children)
    ids = {f"{kind}_file_id": file.id for kind, file in new_files.items()}
    status = record.closing or "completed"
    ended = record.model_copy(update={**ids, "status": status, f"{status}_at": int(time.time())})
    checkpoint = replace(leased.state.checkpoint, has_parts=True)
    await leased.commit(ended, checkpoint, new_files=list(new_files.values()))


def _is_whole(child: ChildBatch, num_rows: Counter[str]) -> bool:
    """Return True if all rows of a child were found. A purge of its queue deletes its parts before its record."""
    if child.state is None:
        return True
    record = child.state.record
    return record.is_final and num_rows[child.id] == record.request_counts.finished


async def _write_files(
    store: BatchStore, leased: LeasedBatch, children: Sequence[ChildBatch]
) -> tuple[dict[RowKind, FileRecord], Counter[str]]:
    """Write the rows of a batch and of the children that exist; return the files, and the rows of each child."""
    queues = tuple(child.queue for child in children if child.state)
    record = leased.record.model_copy(update={"children": queues})
    all_parts = await leased.run(parts_of_all(store, record))
    files: dict[RowKind, FileRecord] = {}
    num_rows: Counter[str] = Counter()
    for kind in kinds_in(all_parts):
        parts = [found for found in all_parts if found.part.kind == kind]
        files[kind] = await _assemble(store, leased, kind, parts, num_rows)
    return files, num_rows


async def delete_parts(store: BatchStore, leased: LeasedBatch) -> None:
    """Delete the parts of a batch that has ended, those of its children, and the objects that a dead steward left."""
    record = leased.record
    await leased.run(delete_parts_of_children(store, record))
    paths = []
    for file_id in filter(None, (record.output_file_id, record.error_file_id)):
        with suppress(NotFound):  # its owner has read it and deleted it
            paths.append((await store.files.get(record.tenant, file_id)).path)
    await leased.run_blocking(lambda: store.storage.keep_only(results_folder(record.id), paths))
    await leased.run_blocking(lambda: store.storage.delete_folder(parts_folder(record.id)))
    await store.records.forget_parts(record.tenant, record.id)
    await leased.commit(record, replace(leased.state.checkpoint, has_parts=False))


async def _assemble(
    store: BatchStore,
    leased: LeasedBatch,
    kind: RowKind,
    parts: Sequence[OwnedPart],
    num_rows: Counter[str],
) -> FileRecord:
    file = store.files.new_result(leased.record, kind)
    batch = leased.record.id
    pieces = (_counted(store.storage, each, batch, num_rows) for each in parts)
    chunks: Iterator[bytes] = chain.from_iterable(pieces)
    if leased.record.order == "input":
        chunks = _in_input_order(chunks, leased.record)

    def write() -> int:
        try:
            with store.storage.create(file.path) as output:
                return sum(output.write(chunk) for chunk in chunks)
        except BaseException:
            store.storage.delete(file.path)
            raise

    return file.model_copy(update={"bytes": await leased.run_blocking(write)})


def _counted(
    storage: Storage, found: OwnedPart, batch: str, num_rows: Counter[str]
) -> Iterator[bytes]:
    """Yield the rows of a part, and count those of children."""
    for piece in rows_of_part(storage, found, batch):
        if found.writer != batch:
            num_rows[found.writer] += piece.count(b"\n")
        yield piece


def _in_input_order(chunks: Iterator[bytes], record: BatchRecord) -> Iterator[bytes]:
    """Sort rows by their line, on this machine's disk. Memory: 16 bytes a line."""
    starts = array("Q", bytes(8 * (record.request_counts.total + 1)))
    sizes = array("Q", starts)
    with tempfile.TemporaryFile(prefix="gristmill-") as spool:
        for chunk in chunks:
            spool.write(chunk)
        spool.seek(0)
        start = 0
        for row in spool:
            number = line_of_row(row, record.id)
            starts[number], sizes[number] = start, len(row)
            start += len(row)
        ordered = bytearray()
        for start, size in zip(starts, sizes, strict=True):
            spool.seek(start)
            ordered += spool.read(size)
            if len(ordered) >= COPY_BYTES:
                yield bytes(ordered)
                ordered.clear()
        if ordered:
            yield bytes(ordered)

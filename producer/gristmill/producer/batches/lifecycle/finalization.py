"""Write the output and the error file of a batch from its parts, and delete the parts later."""

import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.child_batches import children_of
from gristmill.producer.batches.joined_parts import (
    OwnedPart,
    kinds_in,
    parts_of_all,
    rows_of_part,
)
from gristmill.producer.batches.lifecycle.ended_children import (
    delete_parts_of_children,
    end_child,
    with_outcome,
)
from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.batches.objects import BatchRecord, FileRecord
from gristmill.producer.batches.parts import RowKind, parts_folder, results_folder
from gristmill.producer.batches.rows import line_of_row
from gristmill.producer.batches.storage import COPY_BYTES
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
    new_files: list[FileRecord] = []
    ids: dict[str, str] = {}
    if record.children:
        record = with_outcome(record, await children_of(store, record))
    all_parts = await parts_of_all(store, record)
    for kind in kinds_in(all_parts):
        parts = [found for found in all_parts if found.part.kind == kind]
        new_files.append(await _assemble(store, leased, kind, parts))
        ids[f"{kind}_file_id"] = new_files[-1].id
    status = record.closing or "completed"
    ended = record.model_copy(update={**ids, "status": status, f"{status}_at": int(time.time())})
    checkpoint = replace(leased.state.checkpoint, has_parts=True)
    await leased.commit(ended, checkpoint, new_files=new_files)


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
    store: BatchStore, leased: LeasedBatch, kind: RowKind, parts: Sequence[OwnedPart]
) -> FileRecord:
    file = store.files.new_result(leased.record, kind)
    batch = leased.record.id
    pieces = (rows_of_part(store.storage, each, batch) for each in parts)
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

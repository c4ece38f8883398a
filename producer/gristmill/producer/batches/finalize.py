"""Put the parts of a batch together, as its output and its error file, and tidy up."""

import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from gristmill.producer.batches.objects import BatchRecord, FileRecord
from gristmill.producer.batches.parts import Kind, folder_of, results_folder_of
from gristmill.producer.batches.progress import Part
from gristmill.producer.batches.registry import BatchLease, BatchState
from gristmill.producer.batches.rows import line_of_row
from gristmill.producer.batches.service import Batches
from gristmill.producer.batches.storage import COPY_BYTES
from gristmill.shared.errors import NotFound


async def finalize(batches: Batches, lease: BatchLease, state: BatchState) -> None:
    """Write both files, then list them and end the batch in one commit.

    Whoever dies before the commit leaves objects that nobody reads; `tidy` removes them.
    """
    record = state.record
    new: list[FileRecord] = []
    ids: dict[str, str] = {}
    kinds: tuple[Kind, ...] = ("output", "error")
    all_parts = await batches.registry.parts(record.id)
    for kind in kinds:
        if parts := [part for part in all_parts if part.kind == kind]:
            new.append(await _assemble(batches, lease, record, kind, parts))
            ids[f"{kind}_file_id"] = new[-1].id
    status = record.closing or "completed"
    ended = record.model_copy(update={**ids, "status": status, f"{status}_at": int(time.time())})
    await batches.commit(lease, state, ended, replace(state.progress, has_parts=True), new=new)


async def tidy(batches: Batches, lease: BatchLease, state: BatchState) -> None:
    """Delete the parts of a batch that has ended, and what a dead steward left beside its files."""
    record = state.record
    paths = []
    for file_id in filter(None, (record.output_file_id, record.error_file_id)):
        with suppress(NotFound):  # its owner has read it and deleted it
            paths.append((await batches.files.get(record.tenant, file_id)).path)
    await lease.hold(lambda: batches.storage.keep_only(results_folder_of(record.id), paths))
    await lease.hold(lambda: batches.storage.delete_folder(folder_of(record.id)))
    await batches.registry.forget_parts(state.record.id)
    await batches.commit(lease, state, state.record, replace(state.progress, has_parts=False))


async def _assemble(
    batches: Batches, lease: BatchLease, record: BatchRecord, kind: Kind, parts: list[Part]
) -> FileRecord:
    file = batches.files.new_result(record, kind)
    chunks = _concatenated(batches, parts)
    if record.order == "input":
        chunks = _in_input_order(chunks, record)

    def write() -> int:
        try:
            with batches.storage.create(file.path) as output:
                return sum(output.write(chunk) for chunk in chunks)
        except BaseException:
            batches.storage.delete(file.path)
            raise

    return file.model_copy(update={"bytes": await lease.hold(write)})


def _concatenated(batches: Batches, parts: list[Part]) -> Iterator[bytes]:
    for part in parts:
        yield from batches.storage.chunks(part.path)


def _in_input_order(chunks: Iterator[bytes], record: BatchRecord) -> Iterator[bytes]:
    """Sort rows by their line on this machine's disk; in memory are 16 bytes a line."""
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

"""Read the rows of a batch while it runs: first its committed parts, then its files."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.joined_parts import parts_of_all, rows_of_part
from gristmill.producer.batches.objects import BatchRecord
from gristmill.shared.errors import InvalidRequest

POLL_S = 1.0

MAX_MISSED_PARTS = 5
"""Most looks at a missing part of a running batch; then the reader gets the error."""


class RowStream:
    """The rows of one batch, answers and errors, each once.

    If rows have the order of completion, an output file is the sequence of the batch's parts. So
    the unread rest of the file begins at the total size of the parts that were read.

    Args:
        store: The batches and files of the queue.
        batch: Id of the batch.
    """

    def __init__(self, store: BatchStore, batch: str) -> None:
        self._store = store
        self._batch = batch
        self._num_parts = 0
        self._num_bytes: Counter[str] = Counter()

    async def rows(self, *, follow: bool) -> AsyncIterator[bytes]:
        """Yield the rows in pieces; a piece need not end with a row.

        Args:
            follow: Go on until the batch has ended.

        Raises:
            InvalidRequest: The batch sorts its rows at its end, and the caller follows it or has
                read rows from before the end.
        """
        num_missed = 0
        while not (record := await self._record(follow=follow)).is_final:
            try:
                async for chunk in self._new_parts(record):
                    yield chunk
            except FileNotFoundError:  # the batch may have ended just now; its files have the rows
                num_missed += 1
                if num_missed > MAX_MISSED_PARTS:
                    raise
                await asyncio.sleep(POLL_S)
                continue
            if not follow:
                return
            await asyncio.sleep(POLL_S)
        async for chunk in self._rest(record):
            yield chunk

    async def _record(self, *, follow: bool) -> BatchRecord:
        record = (await self._store.records.state(self._batch)).record
        is_mixed = (record.is_final and self._num_bytes) or (follow and not record.is_final)
        if record.order == "input" and is_mixed:
            raise no_order_yet(self._batch)
        return record

    async def _new_parts(self, record: BatchRecord) -> AsyncIterator[bytes]:
        for found in (await parts_of_all(self._store, record))[self._num_parts :]:
            chunks = rows_of_part(self._store.storage, found, self._batch)
            async for chunk in _in_thread(chunks):
                self._num_bytes[found.part.kind] += len(chunk)
                yield chunk
            self._num_parts += 1

    async def _rest(self, record: BatchRecord) -> AsyncIterator[bytes]:
        for kind, file_id in (("output", record.output_file_id), ("error", record.error_file_id)):
            if file_id is not None:
                file = await self._store.files.get(record.tenant, file_id)
                chunks = self._store.storage.chunks(file.path, self._num_bytes[kind])
                async for chunk in _in_thread(chunks):
                    yield chunk


def no_order_yet(batch: str) -> InvalidRequest:
    """Return the error for following a batch that sorts its rows at its end."""
    return InvalidRequest(
        f"the rows of batch {batch} get their order at its end; read them then, without following"
    )


async def _in_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Read from the storage in a thread, so that the event loop goes on."""
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk

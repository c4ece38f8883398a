"""Read the rows of a batch while it runs: the parts that are committed, then its files."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.batches.registry import Registry
from gristmill.producer.batches.storage import Storage
from gristmill.shared.errors import InvalidRequest

POLL_S = 1.0
MAX_MISSED = 5
"""Looks at a part that is not there, while the batch runs, after which a reader is told."""


class Tail:
    """The rows of one batch, each once, answers and errors.

    A file in the order of completion is its parts one after the other, so what a reader has not seen
    of it begins where the parts that he read ended.

    Args:
        registry: Knows the parts.
        storage: Where they lie.
        batch: Whose rows.
    """

    def __init__(self, registry: Registry, storage: Storage, batch: str) -> None:
        self._registry = registry
        self._storage = storage
        self._batch = batch
        self._num_parts = 0
        self._num_bytes: Counter[str] = Counter()

    async def rows(self, *, follow: bool) -> AsyncIterator[bytes]:
        """Yield what is there, in pieces that need not end with a row.

        Args:
            follow: Go on until the batch has ended.

        Raises:
            InvalidRequest: To follow, or to go on after the end of, a batch whose output is in the
                order of its input.
        """
        num_missed = 0
        while not (record := await self._record(follow=follow)).is_final:
            try:
                async for chunk in self._new_parts():
                    yield chunk
            except FileNotFoundError:  # it has ended meanwhile, and the rows are in its files
                num_missed += 1
                if num_missed > MAX_MISSED:
                    raise
                await asyncio.sleep(POLL_S)
                continue
            if not follow:
                return
            await asyncio.sleep(POLL_S)
        async for chunk in self._rest(record):
            yield chunk

    async def _record(self, *, follow: bool) -> BatchRecord:
        record = (await self._registry.state(self._batch)).record
        is_mixed = (record.is_final and self._num_bytes) or (follow and not record.is_final)
        if record.order == "input" and is_mixed:
            raise no_order_yet(self._batch)
        return record

    async def _new_parts(self) -> AsyncIterator[bytes]:
        for part in (await self._registry.parts(self._batch))[self._num_parts :]:
            async for chunk in _in_thread(self._storage.chunks(part.path)):
                self._num_bytes[part.kind] += len(chunk)
                yield chunk
            self._num_parts += 1

    async def _rest(self, record: BatchRecord) -> AsyncIterator[bytes]:
        for kind, file_id in (("output", record.output_file_id), ("error", record.error_file_id)):
            if file_id is not None:
                file = await self._registry.file(record.tenant, file_id)
                async for chunk in _in_thread(
                    self._storage.chunks(file.path, self._num_bytes[kind])
                ):
                    yield chunk


def no_order_yet(batch: str) -> InvalidRequest:
    """Return the error for who would follow a batch whose output is put into the order of its input."""
    return InvalidRequest(
        f"the rows of batch {batch} get their order at its end; read them then, without following"
    )


async def _in_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Read from the storage without holding up the event loop."""
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk

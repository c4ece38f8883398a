"""The operations on batches for clients; the gateway and `gristmill batch` call them.

Nothing here runs a batch. `create` and `cancel` note in Redis what the client wants and wake a
steward, which does the work (`lifecycle/`).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from ulid import ULID

from gristmill.producer.batches.batch_spec import BatchSpec
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.child_batches import children_of
from gristmill.producer.batches.creations import CreationKey
from gristmill.producer.batches.failed_lines import FailedLines, find_failed, read_failed
from gristmill.producer.batches.objects import BatchRecord, FileObject, Page, page
from gristmill.producer.batches.row_stream import RowStream, no_order_yet
from gristmill.producer.batches.shown_batches import as_shown
from gristmill.producer.batches.stored_files import StoredFiles
from gristmill.producer.batches.upload import Upload
from gristmill.producer.highest_lane import lower_of
from gristmill.shared.errors import IdConflict, InvalidRequest, LimitReached, NotFound
from gristmill.shared.pauses import batch_scope
from gristmill.shared.request import Priority
from gristmill.shared.trace_context import TRACEPARENT, trace_headers


class Batches:
    """The batches of one queue, as clients see them.

    Args:
        store: The batches and files of the queue.
        queues: Queues that the lines of a new batch may go to, by their models; the first is that of `store`. Empty
            if there is one queue.
        declared: Model -> one of these queues, for models that may have no worker.
    """

    def __init__(
        self,
        store: BatchStore,
        queues: Sequence[str] = (),
        declared: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.store = store
        self._queues = tuple(queues) if len(queues) > 1 else ()
        self._declared = dict(declared) if self._queues else {}

    @property
    def files(self) -> StoredFiles:
        """The files of tenants."""
        return self.store.files

    async def create(
        self,
        tenant: str,
        spec: BatchSpec,
        *,
        max_open: int | None = None,
        batch_id: str | None = None,
        key: CreationKey | None = None,
    ) -> BatchRecord:
        """Create a batch and wake a steward.

        Args:
            tenant: Owner of the batch.
            spec: The batch that the tenant wants.
            max_open: Most batches of this tenant that may not have ended; None for no limit.
            batch_id: Id of the batch; a repeated call with it creates nothing. None for a new one.
            key: The caller's key; a repeated call returns the batch of the first.

        Raises:
            IdConflict: The key belongs to another call.
            InvalidRequest: A field of `spec` breaks a rule; the message names the field.
            NotFound: The tenant has no such input file.
            LimitReached: The tenant has `max_open` batches that have not ended, or its storage quota is used up.
        """
        if key and (first := await self.created_by(tenant, key)):
            return first
        record = spec.record(batch_id or new_batch_id(), tenant, int(time.time()))
        if traceparent := trace_headers().get(TRACEPARENT):
            record = record.model_copy(update={"traceparent": traceparent})
        record = record.model_copy(update={"queues": self._queues, "declared": self._declared})
        await self.files.get(tenant, spec.input_file_id)
        await self.files.use.check_room(tenant)
        if key:
            claimed_id = await self.store.creations.claim(tenant, key, record.id)
            record = record.model_copy(update={"id": claimed_id})
        try:
            await self.store.records.create(record, max_open or 0)
        except LimitReached:
            if key:
                await self.store.creations.release(tenant, key.key)
            raise
        return await self.batch(tenant, record.id) if key else record

    async def created_by(self, tenant: str, key: CreationKey) -> BatchRecord | None:
        """Return the batch that an earlier call with this key created, or None.

        Raises:
            IdConflict: The key belongs to another call.
        """
        batch_id = await self.store.creations.find_same(tenant, key)
        try:
            return await self.batch(tenant, batch_id) if batch_id else None
        except NotFound:  # that call died before it created its batch
            return None

    async def batches(self, tenant: str, *, after: str | None = None, limit: int = 20) -> Page:
        """Return a page of a tenant's batches, newest first.

        Args:
            tenant: Owner of the batches.
            after: Last id of the page before; None for the first page.
            limit: Most batches of the page.
        """
        found = await self.store.records.page(tenant, after=after, limit=limit + 1)
        return page(await as_shown(self.store, found), limit)

    async def batch(self, tenant: str, batch_id: str) -> BatchRecord:
        """Return a batch.

        Raises:
            NotFound: The tenant has no batch of this id.
        """
        state = await self.store.records.state(batch_id, tenant)
        (shown,) = await as_shown(self.store, [state.record])
        return shown

    async def pause(self, tenant: str, batch_id: str, by: str, reason: str) -> bool:
        """Let no worker claim lines of a batch; its completion window goes on.

        Args:
            tenant: Owner of the batch.
            batch_id: Id of the batch.
            by: Who pauses.
            reason: Why.

        Returns:
            True; False if it was paused already, which changes nothing.

        Raises:
            NotFound: The tenant has no batch of this id.
            InvalidRequest: The batch has ended.
        """
        record = (await self.store.records.state(batch_id, tenant)).record
        if record.is_final:
            raise InvalidRequest(f"batch {batch_id} is {record.status}; it has nothing to pause")
        is_new = await self.store.queue.pauses.pause(batch_scope(batch_id), by, reason)
        record = (await self.store.records.state(batch_id, tenant)).record  # may have children now
        for child in await children_of(self.store, record):
            if child.state is None or not child.is_over:
                await child.store.queue.pauses.pause(batch_scope(child.id), by, reason)
        return is_new

    async def resume(self, tenant: str, batch_id: str) -> bool:
        """Let workers claim again; return False if the batch was not paused.

        Raises:
            NotFound: The tenant has no batch of this id.
        """
        record = (await self.store.records.state(batch_id, tenant)).record
        was_paused = await self.store.queue.pauses.resume(batch_scope(batch_id))
        for child in await children_of(self.store, record):
            await child.store.queue.pauses.resume(batch_scope(child.id))
        return was_paused

    async def cancel(self, tenant: str, batch_id: str) -> BatchRecord:
        """Cancel a batch: finished lines keep their row, every other line gets an error row.

        Raises:
            NotFound: The tenant has no batch of this id.
            InvalidRequest: The batch has ended, or is about to.
        """
        state = await self.store.records.state(batch_id, tenant)
        record = state.record
        if record.status not in ("validating", "in_progress"):
            raise InvalidRequest(
                f"batch {batch_id} is {record.status}; only one that is validating or in progress can be cancelled"
            )
        await self.store.records.mark_cancelled(batch_id)
        await self.store.due.wake(state.work or "steps", tenant, batch_id)
        return await self.batch(tenant, batch_id)

    async def retry_failed(
        self,
        tenant: str,
        batch_id: str,
        *,
        completion_window: str | None = None,
        max_open: int | None = None,
        max_priority: Priority | None = None,
        is_all: bool = False,
        on_left_out: Callable[[int], None] = lambda _: None,
        key: CreationKey | None = None,
    ) -> BatchRecord:
        """Create a batch of those lines of an ended batch that have a row in its error file.

        Lines that can never succeed as they are, such as those with a 400, are left out.

        Args:
            tenant: Owner of both batches.
            batch_id: Id of the ended batch.
            completion_window: Window of the new batch; None for that of the old one.
            max_open: Most batches of this tenant that may not have ended; None for no limit.
            max_priority: Highest lane of the new batch, which may lower its priority; None for that of the old one.
            is_all: True to run also the lines that can never succeed.
            on_left_out: Called with the number of lines that were left out, if there are any.
            key: The caller's key; a repeated call returns the batch of the first.

        Raises:
            IdConflict: The key belongs to another call.
            NotFound: The tenant has no such batch, or its files are gone.
            InvalidRequest: The batch has not ended, nothing failed, or no failed line can succeed.
            LimitReached: The tenant has `max_open` batches that have not ended.
        """
        if key and (first := await self.created_by(tenant, key)):
            return first
        record = await self.batch(tenant, batch_id)
        highest = max_priority or record.max_priority
        failed = await self._failed_lines(record, is_all=is_all)
        file = await self._upload_lines(record, failed)
        spec = BatchSpec(
            input_file_id=file.id, endpoint=record.endpoint, completion_window=completion_window or record.completion_window,
            metadata=record.metadata, output_expires_after_s=record.output_expires_after_s, mode=record.mode,
            order=record.order, unknown_fields=record.unknown_fields, priority=lower_of(record.priority, highest), max_priority=highest, retry_of=record.id,
        )  # fmt: skip
        try:
            made = await self.create(tenant, spec, max_open=max_open, key=key)
        except (LimitReached, IdConflict):
            await self.files.delete(tenant, file.id)
            raise
        if made.input_file_id != file.id:  # another call with this key was faster
            await self.files.delete(tenant, file.id)
        if failed.num_hopeless:
            on_left_out(failed.num_hopeless)
        return made

    async def _failed_lines(self, record: BatchRecord, *, is_all: bool) -> FailedLines:
        if not record.is_final or record.error_file_id is None:
            state = "nothing in it failed" if record.is_final else "it has not ended"
            raise InvalidRequest(f"batch {record.id} cannot be retried: {state} ({record.status})")
        errors = await self.files.get(record.tenant, record.error_file_id)
        find = partial(find_failed, self.store.storage, errors, record.id, is_all=is_all)
        failed = await asyncio.to_thread(find)
        if not failed.num_lines:
            raise InvalidRequest(
                f"batch {record.id} cannot be retried: its {failed.num_hopeless:,} failed lines were refused for what"
                " they say, and can never succeed; correct them in a new file, or run them again all the same"
                " (--all, over HTTP ?all=true)"
            )
        return failed

    async def _upload_lines(self, record: BatchRecord, failed: FailedLines) -> FileObject:
        source = await self.files.get(record.tenant, record.input_file_id)
        lines = read_failed(self.store.storage, source, failed)
        async with Upload(self.files, record.tenant) as upload:
            await asyncio.to_thread(_copy, lines, upload)
            return await upload.finish(f"retry of {source.filename}")

    async def results(
        self, tenant: str, batch_id: str, *, follow: bool = False
    ) -> AsyncIterator[bytes]:
        """Return the rows that are written, answers and errors, also while the batch runs.

        Args:
            tenant: Owner of the batch.
            batch_id: Id of the batch.
            follow: Go on until the batch has ended; each row comes once.

        Raises:
            NotFound: The tenant has no batch of this id, or a file of its results was deleted.
            InvalidRequest: The caller follows a running batch whose rows get their order at its
                end.
        """
        record = await self.batch(tenant, batch_id)
        if follow and record.order == "input" and not record.is_final:
            raise no_order_yet(batch_id)
        for file_id in (record.output_file_id, record.error_file_id):
            if file_id is not None:
                await self.files.get(tenant, file_id)
        return RowStream(self.store, batch_id).rows(follow=follow)


def new_batch_id() -> str:
    """Return the id of a new batch; ids sort by their time."""
    return f"batch_{ULID()}"


def _copy(chunks: Iterator[bytes], upload: Upload) -> None:
    for chunk in chunks:
        upload.write(chunk)

"""Files and batches, as the gateway, `gristmill batch` and the steward use them.

Nothing here runs a batch: `create` and `cancel` write down what is wanted and ring for a steward,
whose work `lifecycle.py` is.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from ulid import ULID

from gristmill.producer.batches.files import Files
from gristmill.producer.batches.input import LineReader
from gristmill.producer.batches.objects import (
    BatchErrors,
    BatchObject,
    BatchRecord,
    FileObject,
    FileRecord,
    Mode,
    Order,
    Page,
    page,
)
from gristmill.producer.batches.progress import Part, Progress
from gristmill.producer.batches.registry import BatchLease, BatchState, Registry
from gristmill.producer.batches.retry import failed_lines
from gristmill.producer.batches.settings import BatchSettings
from gristmill.producer.batches.storage import Storage
from gristmill.producer.batches.tail import Tail, no_order_yet
from gristmill.producer.batches.upload import Upload
from gristmill.shared.connection import connect
from gristmill.shared.errors import InvalidRequest, LimitReached
from gristmill.shared.queue import Queue
from gristmill.shared.request import ENDPOINTS, Priority

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_WINDOW = re.compile(r"([1-9]\d{0,8})([smhd])")
MAX_WINDOW_S = 365 * 24 * 3600


class Batches:
    """The files and batches of one queue.

    Args:
        queue: Where the requests go.
        storage: Where the files lie.
        settings: What bounds them.
    """

    def __init__(self, queue: Queue, storage: Storage, settings: BatchSettings) -> None:
        self.queue = queue
        self.storage = storage
        self.settings = settings
        self.registry = Registry(queue)
        self.files = Files(self.registry, storage, settings)

    @classmethod
    def from_settings(cls, settings: BatchSettings) -> Self:
        """Return what the environment says; to be used as a context."""
        redis = connect(settings.redis_url.get_secret_value(), settings.socket_timeout_s)
        queue = Queue(redis, settings.queue, settings.limits)
        return cls(queue, Storage(settings.storage_url), settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.queue.redis.aclose()

    async def create(
        self,
        tenant: str,
        *,
        input_file_id: str,
        endpoint: str,
        completion_window: str = "24h",
        metadata: Mapping[str, str] | None = None,
        output_expires_after_s: int | None = None,
        mode: Mode = "strict",
        order: Order = "completion",
        priority: Priority = "normal",
        max_active: int | None = None,
        retry_of: str | None = None,
    ) -> BatchRecord:
        """Create a batch; a steward takes it up.

        Args:
            tenant: Whose; its share of the engine is used.
            input_file_id: A file of this tenant.
            endpoint: What every line asks for.
            completion_window: A whole number and s, m, h or d; what is unfinished then expires.
            metadata: Comes back with the batch.
            output_expires_after_s: When its files are deleted, in seconds from its end.
            mode: strict: a bad line fails the file; lenient: it gets an error row, the rest runs.
            order: Of the rows of the output file.
            priority: Lane of its requests.
            max_active: How many of this tenant may be unfinished.
            retry_of: The batch whose failed lines these are.

        Raises:
            InvalidRequest: The message names the field.
            NotFound: The tenant has no such file.
            LimitReached: It has `max_active` unfinished batches.
        """
        check_endpoint(endpoint)
        now = int(time.time())
        expires_at = now + window_s(completion_window)
        await self.registry.file(tenant, input_file_id)
        record = BatchRecord(
            id=f"batch_{ULID()}", tenant=tenant, input_file_id=input_file_id, endpoint=endpoint,
            completion_window=completion_window, created_at=now, expires_at=expires_at,
            metadata=dict(metadata) if metadata is not None else None,
            output_expires_after_s=output_expires_after_s, mode=mode, order=order, priority=priority, retry_of=retry_of,
        )  # fmt: skip
        await self.registry.create(record, max_active or 0)
        return record

    async def batches(self, tenant: str, *, after: str | None = None, limit: int = 20) -> Page:
        """Return a page of a tenant's batches, newest first; `after` is the last id before it."""
        found = await self.registry.batches(tenant, after=after, limit=limit + 1)
        return page([seen(record) for record in found], limit)

    async def batch(self, tenant: str, batch_id: str) -> BatchRecord:
        """Return a batch.

        Raises:
            NotFound: This tenant has none of this id.
        """
        return seen((await self.registry.state(batch_id, tenant)).record)

    async def cancel(self, tenant: str, batch_id: str) -> BatchRecord:
        """Cancel a batch: what has its row keeps it, every other line gets one that says so.

        Raises:
            NotFound: This tenant has none of this id.
            InvalidRequest: It has ended, or is about to.
        """
        record = (await self.registry.state(batch_id, tenant)).record
        if record.status not in ("validating", "in_progress"):
            raise InvalidRequest(
                f"batch {batch_id} is {record.status}; only one that is validating or in progress can be cancelled"
            )
        await self.registry.cancel(batch_id)
        return await self.batch(tenant, batch_id)

    async def retry_failed(
        self,
        tenant: str,
        batch_id: str,
        *,
        completion_window: str | None = None,
        max_active: int | None = None,
    ) -> BatchRecord:
        """Create a batch of the lines of an ended one that have a row in its error file.

        Args:
            tenant: Whose.
            batch_id: Which batch.
            completion_window: Of the new one; that of the old one if left out.
            max_active: As in `create`.

        Raises:
            NotFound: This tenant has no such batch, or its files are gone.
            InvalidRequest: It has not ended, or nothing failed.
        """
        record = await self.batch(tenant, batch_id)
        if not record.is_final or record.error_file_id is None:
            state = "nothing in it failed" if record.is_final else "it has not ended"
            raise InvalidRequest(f"batch {batch_id} cannot be retried: {state} ({record.status})")
        source = await self.files.get(tenant, record.input_file_id)
        errors = await self.files.get(tenant, record.error_file_id)
        lines = failed_lines(self.storage, source, errors, record.id)
        async with self.files.upload(tenant) as upload:
            await asyncio.to_thread(_copy, lines, upload)
            file = await upload.finish(f"retry of {source.filename}")
        try:
            return await self.create(
                tenant, input_file_id=file.id, endpoint=record.endpoint, completion_window=completion_window or record.completion_window,
                metadata=record.metadata, output_expires_after_s=record.output_expires_after_s, mode=record.mode,
                order=record.order, priority=record.priority, max_active=max_active, retry_of=record.id,
            )  # fmt: skip
        except LimitReached:
            await self.files.delete(tenant, file.id)
            raise

    async def results(
        self, tenant: str, batch_id: str, *, follow: bool = False
    ) -> AsyncIterator[bytes]:
        """Return the rows that are there, answers and errors, also while the batch runs.

        Args:
            tenant: Whose.
            batch_id: Of which batch.
            follow: Go on until the batch has ended; each row comes once.

        Raises:
            NotFound: This tenant has none of this id, or a file of its results was deleted.
            InvalidRequest: To follow a batch whose output is put into the order of its input.
        """
        record = await self.batch(tenant, batch_id)
        if follow and record.order == "input" and not record.is_final:
            raise no_order_yet(batch_id)
        for file_id in (record.output_file_id, record.error_file_id):
            if file_id is not None:
                await self.files.get(tenant, file_id)
        return Tail(self.registry, self.storage, batch_id).rows(follow=follow)

    # --- for the steward

    def reader(self, record: BatchRecord) -> LineReader:
        """Return what turns the lines of a batch into requests that end with its completion window."""
        remaining_s = max(0.001, record.expires_at - time.time())
        defaults = {
            "priority": record.priority, "tenant": record.tenant, "reply": record.id, "deadline_s": remaining_s,
        }  # fmt: skip
        return LineReader(
            record.id, max_request_bytes=self.settings.max_request_bytes,
            default_endpoint=record.endpoint, defaults=defaults,
        )  # fmt: skip

    async def input_path(self, record: BatchRecord) -> str:
        """Return where the input of a batch lies.

        Raises:
            NotFound: It was deleted.
        """
        return (await self.registry.file(record.tenant, record.input_file_id)).path

    async def commit(
        self,
        lease: BatchLease,
        state: BatchState,
        record: BatchRecord,
        progress: Progress,
        *,
        parts: Sequence[Part] = (),
        new: Sequence[FileRecord] = (),
    ) -> BatchState:
        """Write what was done, if the lease is still held; returns the state that stands now.

        Raises:
            LeaseLost: Nothing was written.
        """
        now = replace(state, record=record, progress=progress, num_commits=state.num_commits + 1)
        await lease.commit(now, parts=parts, new=new, ttl_s=self.settings.batch_ttl_s)
        return now

    async def end_early(
        self, lease: BatchLease, state: BatchState, errors: BatchErrors | None = None
    ) -> None:
        """End a batch that has no rows: failed with these errors, or cancelled."""
        status = "failed" if errors else "cancelled"
        update = {"status": status, f"{status}_at": int(time.time()), "errors": errors}
        progress = replace(state.progress, has_parts=True)  # if not, there is little to tidy
        await self.commit(lease, state, state.record.model_copy(update=update), progress)

    async def give_up(self, lease: BatchLease, state: BatchState, errors: BatchErrors) -> None:
        """End a batch whose input is gone; the rows that it has go into its files."""
        if state.record.status == "validating":
            await self.end_early(lease, state, errors)
            return
        update = {
            "status": "finalizing", "finalizing_at": int(time.time()), "closing": "failed", "errors": errors,
        }  # fmt: skip
        await self.commit(lease, state, state.record.model_copy(update=update), state.progress)


def check_endpoint(endpoint: str) -> None:
    """Make sure that a batch may ask for an endpoint.

    Raises:
        InvalidRequest: It is unknown.
    """
    if endpoint not in ENDPOINTS:
        raise InvalidRequest(f"endpoint {endpoint!r} is unknown; use {', '.join(ENDPOINTS)}")


def window_s(text: str) -> int:
    """Return the seconds of a completion window such as `24h`.

    Raises:
        InvalidRequest: It is none, or longer than a year.
    """
    found = _WINDOW.fullmatch(text)
    seconds = int(found[1]) * _UNIT_S[found[2]] if found else 0
    if not 0 < seconds <= MAX_WINDOW_S:
        raise InvalidRequest(
            f"completion_window {text[:40]!r} is not allowed; write a whole number and s, m, h or d, such as 24h,"
            " up to 365d"
        )
    return seconds


def seen(record: BatchRecord) -> BatchRecord:
    """Return a batch as clients see it: one that was told to stop is cancelling until it has stopped."""
    if record.cancelling_at and record.status in ("validating", "in_progress"):
        return record.model_copy(update={"status": "cancelling"})
    return record


def public(record: FileRecord | BatchRecord) -> dict[str, Any]:
    """Return what clients may see of a record: its public fields."""
    kind = FileObject if isinstance(record, FileRecord) else BatchObject
    return record.model_dump(include=set(kind.model_fields))


def _copy(chunks: Iterator[bytes], upload: Upload) -> None:
    for chunk in chunks:
        upload.write(chunk)

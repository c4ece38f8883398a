"""Do the work of the `gristmill batch` commands; each call opens a connection and closes it."""

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import click

from gristmill.producer.arguments import scope_of
from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_spec import BatchSpec, check_endpoint, window_s
from gristmill.producer.batches.child_batches import children_of
from gristmill.producer.batches.objects import BatchRecord, public_fields
from gristmill.producer.batches.settings import BatchSettings
from gristmill.producer.batches.shown_batches import as_shown
from gristmill.producer.batches.upload import Upload
from gristmill.producer.commands.batch_files import write_rows
from gristmill.producer.commands.batch_watch import BatchWatch, untaken
from gristmill.producer.commands.batch_words import child_line, list_line, show_lines
from gristmill.producer.commands.pause_words import is_named_by_client, told_of_pause
from gristmill.producer.commands.session import print_json
from gristmill.producer.commands.store_session import on_store
from gristmill.producer.known_names import other_queues
from gristmill.shared.cli import say
from gristmill.shared.errors import GristmillError, InvalidRequest, NotFound
from gristmill.shared.names import DEFAULT_TENANT
from gristmill.shared.pauses import Pause, batch_scope, pause_in_words, this_user
from gristmill.shared.redis_eviction import warn_of_eviction
from gristmill.shared.request_json import request_from_json

T = TypeVar("T")


class BatchSession:
    """The calls of one `gristmill batch` command.

    Args:
        settings: Redis, queue and storage.
        tenant: Tenant that must own the batches. None allows any tenant, and `create` then uses
            `default`.
        queues: Queues that the lines of a new batch may go to; the first is that of the settings.
        declared: Model -> one of these queues, for models that may have no worker.
    """

    def __init__(
        self,
        settings: BatchSettings,
        tenant: str | None,
        queues: Sequence[str] = (),
        declared: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._settings = settings
        self._tenant = tenant
        self._queues, self._declared = queues, declared
        self._on = f"--queue {settings.queue}"  # for commands in messages

    def create(
        self, source: str, options: Mapping[str, Any], copy: Callable[[Upload], bytes]
    ) -> BatchRecord:
        """Copy a file into the storage and create a batch from it.

        Args:
            source: Path or URL of the file, or `-` for stdin.
            options: Fields of `BatchSpec` except the input; an `endpoint` of None stands for the
                endpoint of the first line.
            copy: Writes the lines into the upload and returns the first one.

        Raises:
            InvalidRequest: The file cannot be read, or an option is wrong.
        """
        return self._run(lambda batches: self._create(batches, source, dict(options), copy))

    def batch(self, batch_id: str) -> BatchRecord:
        """Return a batch."""
        return self._on_batch(batch_id, lambda batches, owner: batches.batch(owner, batch_id))

    def tell_untaken(self, record: BatchRecord) -> None:
        """Report that no steward has taken a batch up, if that is so."""
        if record.status != "validating":
            return
        state = self._run(lambda batches: batches.store.records.state(record.id))
        if not state.num_slices:
            say(untaken(self._settings.queue))

    def cancel(self, batch_id: str) -> BatchRecord:
        """Cancel a batch."""
        return self._on_batch(batch_id, lambda batches, owner: batches.cancel(owner, batch_id))

    def pause(self, batch: str, reason: str) -> str:
        """Pause a batch, also one that a client named; return what to tell."""
        return self._run(lambda batches: self._pause(batches, batch, reason))

    async def _pause(self, batches: Batches, batch: str, reason: str) -> str:
        queue, scope = batches.store.queue, scope_of(batch or None)  # "" would be the whole queue
        if self._tenant is None and await is_named_by_client(queue, batch):
            is_new = await queue.pauses.pause(scope, this_user(), reason)
        else:
            owner = await self._owner(batches, batch)
            is_new = await batches.pause(owner, batch, this_user(), reason)
        return await told_of_pause(queue, scope, reason, is_new=is_new)

    def resume(self, batch: str) -> bool:
        """Resume a batch, also one that a client named; return False if it was not paused."""
        return self._run(lambda batches: self._resume(batches, batch))

    async def _resume(self, batches: Batches, batch: str) -> bool:
        if self._tenant is None and await is_named_by_client(batches.store.queue, batch):
            return await batches.store.queue.pauses.resume(scope_of(batch or None))
        return await batches.resume(await self._owner(batches, batch), batch)

    def paused(self, batch_id: str) -> str | None:
        """Return the pause of a batch or of its queue as words, or None."""
        pauses = self._run(lambda batches: batches.store.queue.pauses.all())
        return pause_in_words(self._settings.queue, pauses, batch_id)

    def queues_of(self, record: BatchRecord) -> Sequence[str]:
        """Return one line for each queue that runs lines of a batch of several queues."""

        async def found(batches: Batches) -> Sequence[str]:
            children = await children_of(batches.store, record)
            return [child_line(child) for child in children]

        return self._run(found)

    def retry_failed(self, batch_id: str, window: str | None, *, is_all: bool) -> BatchRecord:
        """Create a batch from the failed lines of an ended one; None keeps its `window`.

        Lines that can never succeed are left out, unless `is_all`; the command says how many.
        """
        return self._on_batch(
            batch_id,
            lambda batches, owner: batches.retry_failed(
                owner, batch_id, completion_window=window, is_all=is_all, on_left_out=_say_left_out
            ),
        )

    def watch(self, batch_id: str) -> BatchRecord:
        """Show progress until a batch has ended."""
        try:
            return self._on_batch(
                batch_id, lambda batches, owner: BatchWatch(batches, owner).watch(batch_id)
            )
        except KeyboardInterrupt:
            say(
                f"interrupted; {batch_id} runs on; to watch it: gristmill batch show {batch_id}"
                f" --wait {self._on}; to end it: gristmill batch cancel {batch_id} {self._on}"
            )
            raise

    def list_batches(self, limit: int, *, as_json: bool) -> None:
        """Print the newest batches of the tenant, or those of all tenants with a tenant column."""
        records, pauses = self._run(lambda batches: self._newest(batches, limit))
        width = max((len(record.tenant) for record in records), default=0)
        for record in records:
            is_paused = batch_scope(record.id) in pauses
            if as_json:
                owner = {} if self._tenant else {"tenant": record.tenant}
                print_json(public_fields(record) | owner | {"is_paused": is_paused})
            else:
                column = "" if self._tenant else f"{record.tenant:<{width}}"
                click.echo(list_line(record, column, self._on, is_paused=is_paused))
        if paused := pause_in_words(self._settings.queue, pauses):
            say(paused)
        if not records:
            of_tenant = f" of tenant {self._tenant}; leave --tenant out to see all" if self._tenant else ""  # fmt: skip
            say(f"queue {self._settings.queue} has no batches{of_tenant}")

    async def _newest(
        self, batches: Batches, limit: int
    ) -> tuple[Sequence[BatchRecord], Mapping[str, Pause]]:
        pauses = await batches.store.queue.pauses.all()
        if self._tenant:
            return (await batches.batches(self._tenant, limit=limit)).data, pauses
        newest = await batches.store.records.newest(limit)
        return await as_shown(batches.store, newest), pauses

    def write_results(self, batch_id: str, output: Path | None, *, follow: bool = False) -> None:
        """Write the rows of a batch to a file, or to stdout if `output` is None."""
        self._on_batch(
            batch_id,
            lambda batches, owner: write_rows(
                batches.results(owner, batch_id, follow=follow), f"{batch_id} {self._on}", output
            ),
        )

    def show(self, record: BatchRecord, *, as_json: bool, brief: bool = False) -> None:
        """Print a batch: JSON, its id alone, or a few lines for people."""
        if as_json:
            print_json(public_fields(record))
        elif brief:
            click.echo(record.id)
            say(f"batch created; watch it with: gristmill batch show {record.id} --wait {self._on}")
        else:
            for line in show_lines(record, self._settings.device_hour_price):
                click.echo(line)

    @staticmethod
    def exit_code(record: BatchRecord) -> int:
        """Return 0 if every line succeeded, else 1."""
        counts = record.request_counts
        return 0 if record.status == "completed" and counts.completed == counts.total else 1

    def _on_batch(self, batch_id: str, work: Callable[[Batches, str], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with the tenant that owns the batch."""

        async def with_owner(batches: Batches) -> T:
            return await work(batches, await self._owner(batches, batch_id))

        return self._run(with_owner)

    async def _owner(self, batches: Batches, batch_id: str) -> str:
        """Return the tenant that owns a batch. An operator who reaches Redis may see all batches.

        Raises:
            NotFound: There is no such batch, or `--tenant` names another tenant than its owner.
        """
        try:
            owner = (await batches.store.records.state(batch_id)).record.tenant
        except NotFound:
            days = self._settings.batch_ttl_s / 86_400
            raise NotFound(
                f"queue {self._settings.queue} has no batch {batch_id!r}: none was created in"
                f" it under this id, or it ended more than {days:g} days ago; list batches:"
                f" gristmill batch list {self._on}; {await other_queues(batches.store.queue)}"
            ) from None
        if self._tenant not in (None, owner):
            raise NotFound(
                f"batch {batch_id} belongs to tenant {owner}, not {self._tenant}; leave --tenant out"
            )
        return owner

    def _run(self, work: Callable[[Batches], Coroutine[Any, Any, T]]) -> T:
        return on_store(
            self._settings, lambda store: work(Batches(store, self._queues, self._declared))
        )

    async def _create(
        self,
        batches: Batches,
        source: str,
        options: dict[str, Any],
        copy: Callable[[Upload], bytes],
    ) -> BatchRecord:
        window_s(options["completion_window"])  # before the file is copied
        if options["endpoint"]:
            check_endpoint(options["endpoint"])
        owner, url = self._tenant or DEFAULT_TENANT, self._settings.redis_url.get_secret_value()
        await warn_of_eviction(batches.store.queue.redis, url)
        async with Upload(batches.files, owner) as upload:
            first = copy(upload)
            file = await upload.finish(os.fsencode(Path(source).name).decode(errors="replace"))
        try:
            options["endpoint"] = options["endpoint"] or self._endpoint_of(first)
            spec = BatchSpec(input_file_id=file.id, **options)
            return await batches.create(owner, spec)
        except GristmillError:
            await batches.files.delete(owner, file.id)
            raise

    def _endpoint_of(self, first: bytes) -> str:
        """Return the endpoint of the first line.

        Raises:
            InvalidRequest: The first line is no request, so it names no endpoint.
        """
        limit = self._settings.max_request_bytes
        try:
            return request_from_json(first, max_request_bytes=limit).endpoint
        except InvalidRequest as error:
            raise InvalidRequest(f"line 1: {error}; or name the endpoint with --endpoint") from None


def _say_left_out(number: int) -> None:
    say(f"left out {number:,} lines that can never succeed as they are; --all runs them again too")

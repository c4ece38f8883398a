"""Do the work of `gristmill tenant purge` and `gristmill queue purge`: ask, show progress, report."""

import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import click

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.settings import BatchSettings
from gristmill.producer.batches.storage import Storage
from gristmill.producer.commands.display import LINE_INTERVAL_S
from gristmill.producer.commands.session import on_tenants, print_json
from gristmill.producer.commands.store_session import storage_errors
from gristmill.producer.purge import PurgeReport, Tell
from gristmill.producer.tenants import Tenants
from gristmill.shared.cli import say
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.format_check import check_format
from gristmill.shared.key_scan import queue_names
from gristmill.shared.queue import Queue

T = TypeVar("T")


def confirm(warning: str, name: str, *, yes: bool) -> None:
    """Ask a person to type a name before data is deleted.

    Args:
        warning: What will be deleted.
        name: Name to type.
        yes: True if the caller has confirmed already.

    Raises:
        UsageError: There is no terminal to ask on.
        InvalidRequest: The person typed something else.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{warning} There is no terminal to confirm it; add --yes")
    say(warning)
    typed = click.prompt("Type its name to confirm", default="", show_default=False, err=True)
    if typed != name:
        raise InvalidRequest(f"{typed!r} is not {name!r}; nothing was deleted")


def in_counts(found: Mapping[str, int]) -> str:
    """Return counts by kind as words, such as `3 files, 1 batches`."""
    return ", ".join(f"{number:,} {kind}" for kind, number in found.items() if number)


def on_tenant_stores(
    settings: BatchSettings,
    queue: str | None,
    work: Callable[[Tenants, Sequence[BatchStore]], Coroutine[Any, Any, T]],
) -> T:
    """Run a coroutine on the tenants, and on the batches and files of queues.

    Args:
        settings: Redis and storage.
        queue: Name of a queue; None for all queues that have a key.
        work: Makes the coroutine.

    Raises:
        GristmillError: The storage cannot be used.
        WrongFormat: Another version wrote a queue.
    """
    storage = Storage(settings.storage_url)

    async def on_open_redis(tenants: Tenants) -> T:
        stores = []
        for name in [queue] if queue else sorted(await queue_names(tenants.redis)):
            of_queue = Queue(tenants.redis, name, settings.limits)
            await check_format(tenants.redis, of_queue.keys)
            stores.append(BatchStore(of_queue, storage, settings))
        return await work(tenants, stores)

    with storage_errors(storage):
        return on_tenants(settings, on_open_redis)


def run_purge(subject: str, purge: Callable[[Tell], PurgeReport], *, as_json: bool) -> int:
    """Run a purge with progress, and print its report.

    Args:
        subject: What is purged, for messages.
        purge: Purges it; called with a callback for the progress.
        as_json: True for one line of JSON on stdout.

    Returns:
        0, or 1 if something is left.
    """
    report = purge(_Progress(subject).tell)
    if as_json:
        print_json(report.fields())
    else:
        for kind, number in report.removed.items():
            click.echo(f"{number:>12,}  {kind}")
    for line in _notes(subject, report):
        say(line)
    return 1 if report.left else 0


def _notes(subject: str, report: PurgeReport) -> list[str]:
    lines = [
        f"{number:,} {kind} name no tenant that can be read; they stay until they expire or are deleted by id"
        for kind, number in report.unattributed.items()
    ]
    stored = "" if report.num_objects is None else f" and {report.num_objects:,} stored objects"
    scanned = f"a scan of {report.num_keys:,} keys{stored}"
    if not report.left:
        return [*lines, f"{subject}: {scanned} found nothing that is left"]
    left = in_counts(report.left)
    remedy = "stop the producers and processes that still write, and run the purge again"
    return [*lines, f"{subject}: {scanned} found {left}; {remedy}"]


class _Progress:
    """Prints that the purge has begun, then what was removed so far, every few seconds."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._told_s: float | None = None

    def tell(self, removed: Mapping[str, int]) -> None:
        if self._told_s is None:
            self._told_s = time.monotonic()
            say(f"deleting the data of {self._subject}; if this is interrupted, run it again")
        elif time.monotonic() - self._told_s >= LINE_INTERVAL_S:
            self._told_s = time.monotonic()
            say(f"so far {in_counts(removed)}")

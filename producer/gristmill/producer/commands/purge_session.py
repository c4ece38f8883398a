"""Do the work of `gristmill tenant purge` and `gristmill queue purge`: ask, show progress, report."""

import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import click

from gristmill.producer.batches.settings import BatchSettings
from gristmill.producer.commands.batch_session import on_store
from gristmill.producer.commands.display import LINE_INTERVAL_S
from gristmill.producer.commands.session import print_json
from gristmill.producer.purge import PurgeReport
from gristmill.shared.cli import say
from gristmill.shared.errors import InvalidRequest


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


def run_purge(
    settings: BatchSettings,
    subject: str,
    purge: Callable[..., Coroutine[Any, Any, PurgeReport]],
    *,
    as_json: bool,
    any_format: bool = False,
) -> int:
    """Run a purge with progress, and print its report.

    Args:
        settings: Redis, queue and storage.
        subject: What is purged, for messages.
        purge: Called with a `BatchStore` and `tell`.
        as_json: True for one line of JSON on stdout.
        any_format: True if the queue may be of another version.

    Returns:
        0, or 1 if something is left.
    """
    say(f"deleting the data of {subject}; if this is interrupted, run it again")
    report = on_store(
        settings, lambda store: purge(store, tell=_Progress().tell), any_format=any_format
    )
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
    """Prints what was removed so far, every few seconds."""

    def __init__(self) -> None:
        self._told_s = time.monotonic()

    def tell(self, removed: Mapping[str, int]) -> None:
        if time.monotonic() - self._told_s >= LINE_INTERVAL_S:
            self._told_s = time.monotonic()
            say(f"so far {in_counts(removed)}")

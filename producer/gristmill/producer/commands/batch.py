"""`gristmill batch`: OpenAI's Batch API without HTTP, for whoever reaches Redis and the storage."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gristmill.shared.cli import queue_options

if TYPE_CHECKING:
    from gristmill.producer.batches.settings import BatchSettings
    from gristmill.shared.settings import QueueSettings

json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")
id_argument = click.argument("batch_id", metavar="BATCH")


@click.group("batch")
def batch_group() -> None:
    """Run files of any size in the background.

    A steward (gristmill steward) validates a file, feeds it to the workers a window at a time and
    writes the rows; nothing has to stay open meanwhile.
    """


tenant_option = click.option(
    "--tenant", metavar="NAME", help="Batches of this tenant only.  [default: all tenants]"
)


def batch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `settings`, a `BatchSettings`."""

    @queue_options
    @click.option(
        "--storage-url", metavar="URL", help="Where files lie.  [env: GRISTMILL_STORAGE_URL]"
    )
    @functools.wraps(command)
    def with_settings(
        *args: Any, settings: "QueueSettings", storage_url: str | None, **options: Any
    ) -> Any:
        from gristmill.producer.batches.settings import BatchSettings
        from gristmill.shared.settings import read_settings

        given = {"redis_url": settings.redis_url, "queue": settings.queue}
        of_batches = read_settings(BatchSettings, storage_url=storage_url, **given)
        return command(*args, settings=of_batches, **options)

    return with_settings


@batch_group.command()
@click.argument("file", metavar="FILE|URL|-")
@click.option("--endpoint", metavar="PATH", help="Of every line.  [default: the first line's]")
@click.option(
    "--window",
    "completion_window",
    default="24h",
    show_default=True,
    help="What is unfinished then expires: 30m, 24h, 7d, ...",
)
@click.option(
    "--lenient", is_flag=True, help="Turn bad lines into error rows instead of failing the file."
)
@click.option(
    "--order",
    type=click.Choice(["completion", "input"]),
    default="completion",
    show_default=True,
    help="Of the rows.",
)
@click.option(
    "--priority",
    type=click.Choice(["high", "normal", "low"]),
    default="normal",
    show_default=True,
    help="Lane.",
)
@click.option(
    "--metadata", metavar="NAME=VALUE", multiple=True, help="Comes back with the batch; repeatable."
)
@click.option("--wait", is_flag=True, help="Show progress until it has ended.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --wait: where the rows go.",
)
@click.option(
    "--tenant", metavar="NAME", default="default", show_default=True, help="Owner of the batch."
)
@json_option
@batch_options
def create(
    *, file: str, wait: bool, output: Path | None, as_json: bool, lenient: bool, metadata: tuple[str, ...],
    tenant: str, settings: "BatchSettings", **options: Any,
) -> int:  # fmt: skip
    """Create a batch of a JSONL file; prints its id.

    FILE is a path, or a URL that fsspec knows, such as s3://bucket/in.jsonl. It is copied into the
    storage, so it may change or go afterwards. With --wait, leaves with 0 if every line succeeded.
    """
    if output and not wait:
        raise click.UsageError("-o needs --wait: without it there are no rows to write")
    if output and not output.parent.is_dir():
        raise click.UsageError(f"-o {output}: there is no folder {output.parent}; make it first")
    options |= {"mode": "lenient" if lenient else "strict", "metadata": _pairs(metadata)}
    from gristmill.producer.batches.submit_run import check_apart
    from gristmill.producer.commands.batch_session import BatchSession

    if output:
        check_apart(file, output)
    session = BatchSession(settings, tenant)
    record = session.create(file, options)
    if not wait:
        session.show(record, as_json=as_json, brief=True)
        return 0
    ended = session.watch(record.id)
    if output:
        session.write_results(record.id, output)
    session.show(ended, as_json=as_json)
    return session.exit_code(ended)


def _pairs(metadata: tuple[str, ...]) -> dict[str, str] | None:
    pairs = [pair.partition("=") for pair in metadata]
    if bad := [name for name, mark, _ in pairs if not (name and mark)]:
        raise click.UsageError(f"--metadata {bad[0]!r} is no NAME=VALUE")
    return {name: value for name, _, value in pairs} or None


@batch_group.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@json_option
@tenant_option
@batch_options
def list_batches(
    *, limit: int, as_json: bool, tenant: str | None, settings: "BatchSettings"
) -> None:
    """List batches, newest first; without --tenant those of all tenants, each with its tenant."""
    from gristmill.producer.commands.batch_session import BatchSession

    BatchSession(settings, tenant).list_batches(limit, as_json=as_json)


@batch_group.command()
@id_argument
@click.option("--wait", is_flag=True, help="Show progress until it has ended.")
@json_option
@tenant_option
@batch_options
def show(
    *, batch_id: str, wait: bool, as_json: bool, tenant: str | None, settings: "BatchSettings"
) -> int:
    """Show how far a batch is, and what is wrong with it.

    With --wait, leaves with 0 if every line succeeded, 1 if not.
    """
    from gristmill.producer.commands.batch_session import BatchSession

    session = BatchSession(settings, tenant)
    record = session.watch(batch_id) if wait else session.batch(batch_id)
    session.show(record, as_json=as_json)
    return session.exit_code(record) if wait else 0


@batch_group.command()
@id_argument
@json_option
@tenant_option
@batch_options
def cancel(*, batch_id: str, as_json: bool, tenant: str | None, settings: "BatchSettings") -> None:
    """Cancel a batch; rows that are written stay, every other line gets one that says so."""
    from gristmill.producer.commands.batch_session import BatchSession

    session = BatchSession(settings, tenant)
    session.show(session.cancel(batch_id), as_json=as_json)


@batch_group.command()
@id_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to; stdout if left out.",
)
@click.option("--follow", is_flag=True, help="Go on until the batch has ended.")
@tenant_option
@batch_options
def results(
    *,
    batch_id: str,
    output: Path | None,
    follow: bool,
    tenant: str | None,
    settings: "BatchSettings",
) -> None:
    """Write the rows that are there, answers and errors, also while the batch runs."""
    from gristmill.producer.commands.batch_session import BatchSession

    BatchSession(settings, tenant).write_results(batch_id, output, follow=follow)


@batch_group.command("retry-failed")
@id_argument
@click.option("--window", metavar="WINDOW", help="Of the new batch.  [default: as before]")
@json_option
@tenant_option
@batch_options
def retry_failed(
    *,
    batch_id: str,
    window: str | None,
    as_json: bool,
    tenant: str | None,
    settings: "BatchSettings",
) -> None:
    """Create a batch of the lines of an ended one that failed, expired or were cancelled."""
    from gristmill.producer.commands.batch_session import BatchSession

    session = BatchSession(settings, tenant)
    session.show(session.retry_failed(batch_id, window), as_json=as_json, brief=True)

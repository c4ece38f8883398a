"""`gristmill batch`: OpenAI's Batch API without HTTP, for users who reach Redis and the storage."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gristmill.producer.commands.batch_options import (
    batch_options,
    checked_tenant,
    id_argument,
    json_option,
    lenient_option,
    model_options,
    tenant_option,
    unknown_fields_option,
)
from gristmill.producer.commands.table_options import TableArguments, table_options
from gristmill.shared.cli import say

if TYPE_CHECKING:
    from gristmill.producer.batches.model_settings import ModelSettings
    from gristmill.producer.batches.settings import BatchSettings


@click.group("batch")
def batch_group() -> None:
    """Run files of any size in the background.

    A steward (gristmill steward) validates a file, submits it a window at a time and writes the
    rows. No command has to stay open.
    """


@batch_group.command()
@click.argument("file", metavar="FILE|URL|-", type=click.Path(allow_dash=True, readable=False))
@click.option(
    "--endpoint",
    metavar="PATH",
    help="Endpoint of every line, such as /v1/completions.  [default: the first line's]",
)
@click.option(
    "--window",
    "completion_window",
    default="24h",
    show_default=True,
    help="Time after which unfinished lines expire: 30m, 24h, 7d, ...",
)
@table_options
@lenient_option
@unknown_fields_option
@click.option(
    "--order",
    type=click.Choice(["completion", "input"]),
    default="completion",
    show_default=True,
    help="Order of the rows: as requests end, or as in the input.",
)
@click.option(
    "--priority",
    type=click.Choice(["high", "normal", "low"]),
    default="normal",
    show_default=True,
    help="Lane of requests that set no priority.",
)
@click.option(
    "--metadata",
    metavar="NAME=VALUE",
    multiple=True,
    help="Name and value that come back with the batch; repeatable.",
)
@click.option("--wait", is_flag=True, help="Show progress until the batch has ended.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the rows, overwritten; needs --wait.",
)
@click.option(
    "--tenant",
    metavar="NAME",
    callback=checked_tenant,
    default="default",
    show_default=True,
    help="Tenant that owns the batch; its requests use this tenant's share of the engine.",
)
@json_option
@model_options
def create(
    *, file: str, wait: bool, output: Path | None, as_json: bool, lenient: bool, metadata: tuple[str, ...],
    tenant: str, table: TableArguments, settings: "ModelSettings", **options: Any,
) -> int:  # fmt: skip
    """Create a batch from a JSONL file, or from a table with --prompt or --template.

    FILE is a path, a URL that fsspec knows, such as s3://bucket/in.jsonl, or - for stdin. The
    command copies the file into the storage, so you may change or delete it afterwards. The rows of
    a table become lines with the custom_id row-1, row-2, ...

    Prints the id of the batch; with --wait, the batch once it has ended. With --wait, exits with 0
    if every line succeeded, 1 if not.
    """
    if output and not wait:
        raise click.UsageError("-o needs --wait: without it there are no rows to write")
    if output and not output.parent.is_dir():
        raise click.UsageError(f"-o {output}: there is no folder {output.parent}; make it first")
    options |= {"mode": "lenient" if lenient else "strict", "metadata": _pairs(metadata)}
    from gristmill.producer.batches.submit_run import check_apart
    from gristmill.producer.commands.batch_files import batch_copy
    from gristmill.producer.commands.batch_session import BatchSession

    if output:
        check_apart(file, output)
    session = BatchSession(settings, tenant, settings.queues, settings.gateway_models)
    record = session.create(file, options, batch_copy(file, table, options["endpoint"]))
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
        raise click.UsageError(f"--metadata {bad[0]!r} is not NAME=VALUE, such as team=search")
    return {name: value for name, _, value in pairs} or None


@batch_group.command("list")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Most batches to list.",
)
@json_option
@tenant_option
@batch_options
def list_batches(
    *, limit: int, as_json: bool, tenant: str | None, settings: "BatchSettings"
) -> None:
    """List batches, newest first.

    Without --tenant, lists the batches of all tenants, each with its tenant.
    """
    from gristmill.producer.commands.batch_session import BatchSession

    BatchSession(settings, tenant).list_batches(limit, as_json=as_json)


@batch_group.command()
@id_argument
@click.option("--wait", is_flag=True, help="Show progress until the batch has ended.")
@json_option
@tenant_option
@batch_options
def show(
    *, batch_id: str, wait: bool, as_json: bool, tenant: str | None, settings: "BatchSettings"
) -> int:
    """Show the status, counts, tokens, errors and files of a batch.

    With --wait, exits with 0 if every line succeeded, 1 if not.
    """
    from gristmill.producer.commands.batch_session import BatchSession

    session = BatchSession(settings, tenant)
    record = session.watch(batch_id) if wait else session.batch(batch_id)
    session.show(record, as_json=as_json)
    for line in () if as_json else session.queues_of(record):
        click.echo(line)
    if not as_json and not record.is_final and (paused := session.paused(batch_id)):
        click.echo(f"paused   {paused}")
    if not as_json and record.waiting:
        click.echo(f"waiting  {record.waiting.message}")
    session.tell_untaken(record)
    return session.exit_code(record) if wait else 0


@batch_group.command()
@id_argument
@click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="Reason that `batch show` shows, up to 200 characters.",
)
@tenant_option
@batch_options
def pause(*, batch_id: str, reason: str, tenant: str | None, settings: "BatchSettings") -> None:
    """Let no worker claim lines of a batch, or requests of a batch that a client named.

    Lines that run end. The completion window goes on. A pause survives restarts.
    """
    from gristmill.producer.commands.batch_session import BatchSession

    say(BatchSession(settings, tenant).pause(batch_id, reason))


@batch_group.command()
@id_argument
@tenant_option
@batch_options
def resume(*, batch_id: str, tenant: str | None, settings: "BatchSettings") -> None:
    """Let workers claim lines of a paused batch again, or requests of a batch that a client named."""
    from gristmill.producer.commands.batch_session import BatchSession

    was_paused = BatchSession(settings, tenant).resume(batch_id)
    say(f"batch {batch_id} {'is resumed' if was_paused else 'was not paused'}")


@batch_group.command()
@id_argument
@json_option
@tenant_option
@batch_options
def cancel(*, batch_id: str, as_json: bool, tenant: str | None, settings: "BatchSettings") -> None:
    """Cancel a batch.

    Finished lines keep their row. Every other line gets an error row.
    """
    from gristmill.producer.commands.batch_session import BatchSession

    session = BatchSession(settings, tenant)
    session.show(session.cancel(batch_id), as_json=as_json)


@batch_group.command()
@id_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the rows, overwritten.  [default: stdout]",
)
@click.option("--follow", is_flag=True, help="Write new rows until the batch has ended.")
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
    """Write the rows that a batch has so far, answers and errors."""
    from gristmill.producer.commands.batch_session import BatchSession

    BatchSession(settings, tenant).write_results(batch_id, output, follow=follow)


@batch_group.command("retry-failed")
@id_argument
@click.option(
    "--window",
    metavar="WINDOW",
    help="Time after which unfinished lines expire: 30m, 24h, 7d, ...  [default: as before]",
)
@click.option(
    "--all",
    "is_all",
    is_flag=True,
    help="Run also the lines that can never succeed, such as those with a 400.",
)
@json_option
@tenant_option
@model_options
def retry_failed(
    *,
    batch_id: str,
    window: str | None,
    is_all: bool,
    as_json: bool,
    tenant: str | None,
    settings: "ModelSettings",
) -> None:
    """Create a batch from the lines of an ended batch that failed, expired or were cancelled."""
    from gristmill.producer.commands.batch_session import BatchSession

    session = BatchSession(settings, tenant, settings.queues, settings.gateway_models)
    session.show(session.retry_failed(batch_id, window, is_all=is_all), as_json=as_json, brief=True)

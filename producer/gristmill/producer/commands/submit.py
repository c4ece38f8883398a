"""`gristmill submit`: run a file of requests or a table; an interrupted run can be resumed."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gristmill.producer.commands.batch_options import lenient_option, unknown_fields_option
from gristmill.producer.commands.table_options import TableArguments, table_options
from gristmill.shared.cli import FiniteRange, queue_options
from gristmill.shared.errors import InvalidRequest

if TYPE_CHECKING:
    from gristmill.producer.commands.submission import SubmitOptions
    from gristmill.shared.settings import QueueSettings

_RUN_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


@click.command()
@click.argument(
    "sources",
    metavar="FILE...|-",
    nargs=-1,
    required=True,
    type=click.Path(allow_dash=True, readable=False),
)
@click.option("--wait", is_flag=True, help="Wait for the results and write them.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the rows; needs --wait. For a table, .jsonl, .csv or .parquet.  [default: stdout]",
)
@table_options
@lenient_option
@unknown_fields_option
@click.option(
    "--priority",
    type=click.Choice(["high", "normal", "low"]),
    help="Lane of requests that set no priority.  [default: normal]",
)
@click.option(
    "--tenant",
    metavar="NAME",
    help="Tenant of requests that name none; they use its share of the engine.  [default: default]",
)
@click.option(
    "--deadline-s",
    type=FiniteRange(min=0),
    help="Seconds after which an unfinished request expires; 0 for never.  [default: 0]",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 100),
    help="Most attempts of each request.  [default: 3]",
)
@click.option(
    "--endpoint",
    metavar="PATH",
    help="Endpoint of lines that name none, such as /v1/completions."
    "  [default: the one that suits the body]",
)
@click.option(
    "--batch", metavar="NAME", help="Name of the batch that counts the requests.  [default: none]"
)
@click.option("--window", type=click.IntRange(1, 100_000), default=4096, show_default=True,
              help="Most unfinished requests in Redis at a time; needs --wait.")  # fmt: skip
@click.option(
    "--run",
    metavar="RUN",
    help="Name of the run; the same name again submits nothing twice.  [default: a new name]",
)
@click.option("--force", is_flag=True, help="Overwrite the output file and begin a new run.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
@queue_options
def submit(
    *, sources: tuple[str, ...], table: "TableArguments", wait: bool, output: Path | None, lenient: bool, unknown_fields: str, window: int, run: str | None,
    force: bool, as_json: bool, endpoint: str | None, settings: "QueueSettings", **fields: Any,
) -> int:  # fmt: skip
    """Run a JSONL file with one request per line, or a table with --prompt or --template.

    Submits the requests; with --wait, also writes their results.

    A line is OpenAI's batch format, an envelope {"body": ...}, or a plain {"prompt": ...},
    {"messages": ...} or {"input": ...}. The command checks the whole file before it submits
    anything.

    A table is JSONL (also .gz, .zst), CSV, Parquet or Arrow: files, globs, folders, or URLs such as
    hf://datasets/OWNER/NAME. The output has its rows in their order, with the columns answer,
    prompt_tokens, output_tokens, finish_reason and error.

    The same command with the same -o or --run resumes an interrupted run. It skips lines that have
    their row in the output file, and runs no finished request again.

    Exits with 0 if all requests succeeded, 1 if some failed.
    """
    from gristmill.producer.commands.submission import Submission, SubmitOptions
    from gristmill.producer.commands.submit_sources import opened_run

    options = SubmitOptions(
        source=sources[0] if len(sources) == 1 else f"{sources[0]} and {len(sources) - 1} more", wait=wait, output=output, lenient=lenient, refuses_unknown=unknown_fields == "refuse", window=window, run=run, force=force,
        as_json=as_json, endpoint=endpoint,
        fields={name: value for name, value in fields.items() if value is not None},
    )  # fmt: skip
    _check_options(options, sources)
    with opened_run(sources, table, options) as source:
        return Submission(source, options, settings).execute()


def _check_options(options: "SubmitOptions", sources: Sequence[str]) -> None:
    if options.output is not None and not options.wait:
        raise click.UsageError("-o needs --wait: without it there are no results to write")
    if options.as_json and options.wait and options.output is None:
        raise click.UsageError(
            "--json with --wait needs -o: rows and summary would both go to stdout"
        )
    if options.run is not None and not _RUN_NAME.fullmatch(options.run):
        raise click.UsageError(
            f"--run {options.run!r} is not allowed; use 1 to 100 letters, digits, '.', '_' or '-'"
        )
    if options.output is not None:
        from gristmill.producer.batches.submit_run import RunRecord, check_apart

        for source in sources:
            check_apart(source, options.output, RunRecord.beside(options.output))
    _check_fields(options)


def _check_fields(options: "SubmitOptions") -> None:
    """Refuse options that no line may have once, instead of with every line.

    It reads a sample line with these options.
    """
    from gristmill.producer.batches.rows import BadLine, Line, LineReader
    from gristmill.shared.body_fields import NEEDED
    from gristmill.shared.request import COMPLETIONS

    endpoint = COMPLETIONS if options.endpoint is None else options.endpoint
    reader = LineReader(
        "", max_request_bytes=1024, default_endpoint=endpoint, defaults=options.fields
    )
    body = dict.fromkeys(NEEDED.get(endpoint, ()), "")
    read = reader.read(Line(1, json.dumps({"body": body}).encode(), 0, 0))
    if isinstance(read, BadLine):
        raise InvalidRequest(f"no line can have these options: {read.reason}")

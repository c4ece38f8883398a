"""`gristmill submit`: run a file of requests or a table; an interrupted run can be resumed."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gristmill.producer.commands.submit_options import submit_options
from gristmill.shared.cli import queue_options

if TYPE_CHECKING:
    from gristmill.producer.commands.submit_options import SubmitArguments
    from gristmill.shared.settings import QueueSettings


@click.command()
@click.option("--wait", is_flag=True, help="Wait for the results and write them.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the rows; needs --wait. For a table, .jsonl, .csv or .parquet.  [default: stdout]",
)
@submit_options
@queue_options
def submit(
    *, given: "SubmitArguments", wait: bool, output: Path | None, settings: "QueueSettings"
) -> int:
    """Run a JSONL file with one request per line, or a table with --prompt or --template.

    Submits the requests; with --wait, also writes their results.

    A line is OpenAI's batch format, an envelope {"body": ...}, or a plain {"prompt": ...},
    {"messages": ...} or {"input": ...}. The command checks the whole file before it submits
    anything. The input - is stdin.

    A table is JSONL (also .gz, .zst), CSV, Parquet or Arrow: files, globs, folders, or URLs such as
    hf://datasets/OWNER/NAME. The output has its rows in their order, with the columns answer,
    prompt_tokens, output_tokens, finish_reason and error.

    The same command with the same -o or --run-name resumes an interrupted run. It skips lines that
    have their row in the output file, and runs no finished request again.

    Exits with 0 if all requests succeeded, 1 if some failed.
    """
    from gristmill.producer.commands.submission import Submission
    from gristmill.producer.commands.submit_sources import opened_run

    if output is not None and not wait:
        raise click.UsageError("-o needs --wait: without it there are no results to write")
    if given.as_json and wait and output is None:
        raise click.UsageError(
            "--json with --wait needs -o: rows and summary would both go to stdout"
        )
    options = given.options(wait=wait, output=output)
    with opened_run(given.sources, given.table, options) as source:
        return Submission(source, options, settings, sys.argv[1:]).execute()

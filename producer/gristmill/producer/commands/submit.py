"""`gristmill submit`: run a JSONL file of requests; an interrupted run can be resumed."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gristmill.producer.commands.batch_options import lenient_option, unknown_fields_option
from gristmill.shared.cli import FiniteRange, queue_options
from gristmill.shared.disk_errors import disk_errors
from gristmill.shared.errors import InvalidRequest

if TYPE_CHECKING:
    from gristmill.producer.commands.submission import SubmitOptions
    from gristmill.shared.settings import QueueSettings

_RUN_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


@click.command()
@click.argument("file", metavar="FILE|-", type=click.Path(allow_dash=True, readable=False))
@click.option("--wait", is_flag=True, help="Wait for the results and write them.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the rows; needs --wait.  [default: stdout]",
)
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
    *, file: str, wait: bool, output: Path | None, lenient: bool, unknown_fields: str, window: int, run: str | None,
    force: bool, as_json: bool, endpoint: str | None, settings: "QueueSettings", **fields: Any,
) -> int:  # fmt: skip
    """Run a JSONL file with one request per line.

    Submits the requests; with --wait, also writes their results.

    A line is OpenAI's batch format, an envelope {"body": ...}, or a plain {"prompt": ...},
    {"messages": ...} or {"input": ...}. The command checks the whole file before it submits
    anything.

    The same command with the same -o or --run resumes an interrupted run. It skips lines that have
    their row in the output file, and runs no finished request again.

    Exits with 0 if all requests succeeded, 1 if some failed.
    """
    from gristmill.producer.commands.submission import Submission, SubmitOptions

    options = SubmitOptions(
        source=file, wait=wait, output=output, lenient=lenient, refuses_unknown=unknown_fields == "refuse", window=window, run=run, force=force,
        as_json=as_json, endpoint=endpoint,
        fields={name: value for name, value in fields.items() if value is not None},
    )  # fmt: skip
    _check_options(options)
    with _spooled(file) as path:
        return Submission(path, options, settings).execute()


def _check_options(options: "SubmitOptions") -> None:
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

        check_apart(options.source, options.output, RunRecord.beside(options.output))
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


@contextmanager
def _spooled(source: str) -> Iterator[Path]:
    """Yield a file that can be read twice: the file itself, or a copy of stdin."""
    if source != "-":
        if not Path(source).is_file():
            raise InvalidRequest(f"no file {source!r}; name a JSONL file, or - for stdin")
        yield Path(source)
        return
    from gristmill.producer.commands.session import stdin_bytes

    piped, remedy = (
        stdin_bytes(),
        "make room there, or name another folder with TMPDIR; then repeat the command",
    )
    with ExitStack() as stack:
        with disk_errors("the copy of stdin", remedy):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gristmill-")))
        path = folder / "stdin"
        with disk_errors(path, remedy), path.open("wb") as copy:
            shutil.copyfileobj(piped, copy)
        yield path

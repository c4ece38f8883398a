"""The input and the options of a submission, for each command that runs one: `submit` and `run`."""

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gristmill.producer.commands.batch_options import lenient_option, unknown_fields_option
from gristmill.producer.commands.forecast.forecast_options import (
    ForecastOptions,
    forecast_options,
)
from gristmill.producer.commands.table_options import TableArguments, table_options
from gristmill.producer.window_size import MAX_WINDOW, WINDOW
from gristmill.shared.cli import FiniteRange
from gristmill.shared.errors import InvalidRequest

_RUN_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """The options of one submission.

    Attributes:
        source: Name of the input in messages; `-` for stdin.
        wait: True to wait for the results and write their rows.
        output: File that gets the rows; None for stdout.
        lenient: True to run the good lines of a file that has bad ones.
        refuses_unknown: True makes lines with body fields that the engine ignores bad lines.
        window: Most unfinished requests at a time.
        run: Name of the run; None for that of the output, or a new one.
        force: True to begin a new run although the output has rows.
        as_json: True to print the summary as JSON.
        endpoint: Endpoint of lines that name none; None for the one that suits the body.
        fields: Fields of `Request` for lines that do not set them.
        forecast: Questions about the run that take its place.
    """

    source: str
    wait: bool
    output: Path | None
    lenient: bool
    refuses_unknown: bool
    window: int
    run: str | None
    force: bool
    as_json: bool
    endpoint: str | None
    fields: dict[str, Any]
    forecast: ForecastOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitArguments:
    """The input and the options as they were given; `submit_options` lists their meanings."""

    sources: tuple[str, ...]
    table: TableArguments
    lenient: bool
    unknown_fields: str
    priority: str | None
    tenant: str | None
    deadline_s: float | None
    max_attempts: int | None
    endpoint: str | None
    batch: str | None
    window: int | None
    run_name: str | None
    force: bool
    as_json: bool
    forecast: ForecastOptions

    def options(self, *, wait: bool, output: Path | None, window: int = WINDOW) -> SubmitOptions:
        """Check the arguments and return the options of the submission.

        Args:
            wait: True to wait for the results and write their rows.
            output: File that gets the rows; None for stdout.
            window: Most unfinished requests if no option says a number.

        Raises:
            click.UsageError: The name of the run is not allowed.
            InvalidRequest: The output is the input, or no line can have these options.
        """
        options = SubmitOptions(
            source=self._name(),
            wait=wait,
            output=output,
            lenient=self.lenient,
            refuses_unknown=self.unknown_fields == "refuse",
            window=self.window or window,
            run=self.run_name,
            force=self.force,
            as_json=self.as_json,
            endpoint=self.endpoint,
            fields=self._fields(),
            forecast=self.forecast,
        )
        self.forecast.check()
        _check_run_name(self.run_name)
        _check_output(self.sources, output)
        _check_fields(options)
        return options

    def _name(self) -> str:
        """Return the name of the input in messages."""
        first, *others = self.sources
        return f"{first} and {len(others)} more" if others else first

    def _fields(self) -> dict[str, Any]:
        """Return the fields of `Request` that options give."""
        names = ("priority", "tenant", "deadline_s", "max_attempts", "batch")
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}


def submit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the input and the shared options to a command; it gets them as `given`, a `SubmitArguments`."""

    @click.argument(
        "sources",
        metavar="INPUT...",
        nargs=-1,
        required=True,
        type=click.Path(allow_dash=True, readable=False),
    )
    @table_options
    @forecast_options
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
        "--batch",
        metavar="NAME",
        help="Name of the batch that counts the requests.  [default: none]",
    )
    @click.option(
        "--window",
        type=click.IntRange(1, MAX_WINDOW),
        help="Most unfinished requests in Redis while the command waits for results."
        f"  [default: {WINDOW}; {WINDOW} for each engine that the command starts]",
    )
    @click.option(
        "--run-name",
        metavar="NAME",
        help="Name of the run; the same name again submits nothing twice.  [default: a new name]",
    )
    @click.option("--force", is_flag=True, help="Overwrite the output file and begin a new run.")
    @click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
    @functools.wraps(command)
    def with_arguments(*args: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in SubmitArguments.__dataclass_fields__}
        return command(*args, given=SubmitArguments(**given), **options)

    return with_arguments


def _check_run_name(name: str | None) -> None:
    if name is not None and not _RUN_NAME.fullmatch(name):
        raise click.UsageError(
            f"--run-name {name!r} is not allowed; use 1 to 100 letters, digits, '.', '_' or '-'"
        )


def _check_output(sources: Sequence[str], output: Path | None) -> None:
    from gristmill.producer.batches.submit_run import RunRecord, check_apart
    from gristmill.producer.commands.forecast.prediction import Prediction

    if output is not None:
        if not output.parent.is_dir():
            raise InvalidRequest(
                f"the folder {output.parent} for -o {output.name} does not exist; create it, or name another output"
            )
        for source in sources:
            check_apart(source, output, RunRecord.beside(output), Prediction.beside(output))


def _check_fields(options: SubmitOptions) -> None:
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

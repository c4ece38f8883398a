"""Open the input of `gristmill submit`: one file of requests, stdin, or the files of a table."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gristmill.producer.commands.session import stdin_bytes
from gristmill.producer.commands.submit_runs import LinesRun, RunSource, TableRun
from gristmill.producer.commands.table_options import TableArguments
from gristmill.shared.disk_errors import disk_errors
from gristmill.shared.errors import InvalidRequest

if TYPE_CHECKING:
    from gristmill.producer.commands.submit_options import SubmitOptions


_OTHER = (".csv", ".tsv", ".parquet", ".pq", ".arrow", ".feather", ".ipc", ".gz", ".zst")
"""Extensions that only the readers of tables know."""

_COPY_BYTES = 2**20


@contextmanager
def opened_run(
    sources: Sequence[str], table: TableArguments, options: "SubmitOptions"
) -> Iterator[RunSource]:
    """Yield what a submission runs.

    Args:
        sources: Paths, globs, folders and URLs, or `-` alone for stdin.
        table: Options of a table.
        options: Options of the command.

    Raises:
        InvalidRequest: The input cannot be read, or does not fit the options.
    """
    if "-" in sources and len(sources) > 1:
        raise click.UsageError("- stands for stdin and goes with no other file")
    if table.has_prompt():
        with _opened_table(sources, table, options) as run:
            yield run
        return
    with _lines(sources, options.output) as path:
        yield LinesRun(path, options.source)


@contextmanager
def _opened_table(
    sources: Sequence[str], arguments: TableArguments, options: "SubmitOptions"
) -> Iterator[TableRun]:
    from gristmill.producer.tables.table import Table
    from gristmill.producer.tables.table_files import check_files_apart, find_files
    from gristmill.producer.tables.table_writers import output_kind

    if options.wait and options.output is None:
        raise click.UsageError("a table needs -o: name OUT.parquet, OUT.csv or OUT.jsonl")
    kind = output_kind(options.output) if options.output else "jsonl"
    spec = arguments.spec(options.endpoint)
    with ExitStack() as stack:
        if is_piped := "-" in sources:
            sources = [str(stack.enter_context(_stdin_copy("stdin.jsonl")))]
        files = find_files(sources)
        if options.output:
            check_files_apart(files, options.output)
        if is_piped:
            files = [replace(files[0], name="stdin")]
        table = Table(files, has_types=kind == "parquet")
        yield stack.enter_context(TableRun(table, spec, kind))


@contextmanager
def _lines(sources: Sequence[str], output: Path | None) -> Iterator[Path]:
    """Yield a file of requests that can be read twice: the file itself, or a copy."""
    source = sources[0]
    if source == "-":
        with _stdin_copy("stdin") as path:
            yield path
    elif len(sources) == 1 and Path(source).is_file() and not source.lower().endswith(_OTHER):
        yield Path(source)
    elif (
        len(sources) == 1
        and not _is_url(source)
        and not Path(source).exists()
        and not _has_magic(source)
    ):
        raise InvalidRequest(f"no file {source!r}; name a JSONL file, or - for stdin")
    else:
        with _decompressed(sources, output) as path:
            yield path


def _is_url(source: str) -> bool:
    return "://" in source


def _has_magic(source: str) -> bool:
    return any(mark in source for mark in "*?[")


@contextmanager
def _decompressed(sources: Sequence[str], output: Path | None) -> Iterator[Path]:
    """Yield a copy of one file of requests that is compressed or remote."""
    from gristmill.producer.tables.table_files import check_files_apart, find_files

    files = find_files(sources)
    if output is not None:
        check_files_apart(files, output)
    if files[0].kind != "jsonl":
        raise InvalidRequest(
            f"{files[0].name} is a table; say what to ask for each row with --prompt 'Classify: {{text}}', or"
            " --template FILE"
        )
    if len(files) > 1:
        raise InvalidRequest(
            f"{len(files):,} files of requests; join them to one file, or run their columns with --prompt"
        )
    with files[0].open() as stream, _copy(stream, "input.jsonl", files[0].name) as path:
        yield path


@contextmanager
def _stdin_copy(name: str) -> Iterator[Path]:
    with _copy(stdin_bytes(), name, "stdin") as path:
        yield path


@contextmanager
def _copy(stream: Any, name: str, shown: str) -> Iterator[Path]:
    remedy = "make room there, or name another folder with TMPDIR; then repeat the command"
    with ExitStack() as stack:
        with disk_errors(f"the copy of {shown}", remedy):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gristmill-")))
        path = folder / name
        with disk_errors(path, remedy), path.open("wb") as copy:
            shutil.copyfileobj(stream, copy, _COPY_BYTES)
        yield path

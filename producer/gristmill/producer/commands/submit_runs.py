"""What one `gristmill submit` runs: lines of requests, or a table whose columns become requests.

`Submission` does the rest for both. The table's parts are imported only when a table is run.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from gristmill.producer.batches.rows import (
    BadLine,
    LineReader,
    SkippedRow,
    failure_in_words,
    is_success,
)
from gristmill.producer.batches.submit_run import (
    Appended,
    InputFile,
    InputReport,
    OutputFile,
    RunRecord,
    WrittenRows,
    fingerprint,
)
from gristmill.shared.answers import answer_text
from gristmill.shared.cli import say
from gristmill.shared.request import CHAT, Request

if TYPE_CHECKING:
    from gristmill.producer.tables.second_asking import SecondAskings
    from gristmill.producer.tables.spec import TableSpec
    from gristmill.producer.tables.table import Table
    from gristmill.producer.tables.table_input import TableReport


class RunInput(Protocol):
    """An input that was checked: `InputFile` or `TableInput`."""

    def entries(
        self, finished: bytearray | None = None
    ) -> Iterator[tuple[int, Request | BadLine | SkippedRow]]:
        """Yield each line's number with its request, or why it has none."""
        ...

    def copies_among(self, numbers: Iterable[int]) -> set[int]:
        """Return those of some lines that ask the same as an earlier one, which runs for them."""
        ...


class RunOutput(AbstractContextManager["RunOutput"], Protocol):
    """An output that only this process writes; `OutputFile` describes the methods."""

    def begun_run(self, *, is_forced: bool) -> RunRecord | None:
        """Return the run to which this output belongs."""
        ...

    def begin(self, run: RunRecord) -> None:
        """Begin a new run."""
        ...

    def forget_run(self) -> None:
        """Delete the record of a run that has no rows."""
        ...

    def keep_whole_rows(self, run: str, num_lines: int) -> WrittenRows:
        """Return the rows that are there already."""
        ...

    def append(self, row: bytes) -> Appended | None:
        """Write a row; may return the outcome."""
        ...

    @property
    def keeps_results(self) -> bool:
        """True if the results of written rows stay in Redis, where others may read them."""
        ...

    def sync(self) -> None:
        """Make the rows so far survive a power cut."""
        ...

    def finish(self, totals: Mapping[str, Any]) -> None:
        """End the output once all rows are there."""
        ...


class RunSource(Protocol):
    """What a submission has to know about its input."""

    @property
    def noun(self) -> str:
        """What the input has: line or row."""
        ...

    @property
    def if_empty(self) -> str:
        """What is wrong with an input that has none, and the remedy."""
        ...

    @property
    def common_fields(self) -> str:
        """The option with the fields of all requests; "" if each line has its own fields."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """Values that a resume must have again, beside the options of requests."""
        ...

    def fingerprint(self) -> tuple[int, str]:
        """Return the bytes of the input and a digest."""
        ...

    def open_output(self, path: Path) -> RunOutput:
        """Open and lock the output."""
        ...

    def checked(
        self, reader: LineReader, output: Any, *, is_resume: bool
    ) -> tuple[RunInput, InputReport]:
        """Check the input, and return it with the report."""
        ...

    def in_words(self, report: InputReport) -> str:
        """Return how much is run, for people."""
        ...

    def totals(self, report: InputReport) -> dict[str, int]:
        """Return counts of the report for the summary."""
        ...

    def shown(self, row: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Return what people want to see of a parsed row: its fields by name, and why it has failed."""
        ...


class LinesRun:
    """A JSONL file of requests.

    Args:
        path: Path of the file, which is read twice; for stdin, of its copy.
        source: Name of the file in messages.
    """

    noun = "line"
    common_fields = ""
    facts: Mapping[str, Any] = {}

    def __init__(self, path: Path, source: str) -> None:
        self._path = path
        self.if_empty = f"{source} has no requests; write one JSON object a line"

    def fingerprint(self) -> tuple[int, str]:
        """See `RunSource`."""
        return fingerprint(self._path)

    def open_output(self, path: Path) -> OutputFile:
        """See `RunSource`."""
        return OutputFile(path)

    def checked(
        self, reader: LineReader, output: Any, *, is_resume: bool
    ) -> tuple[InputFile, InputReport]:
        """See `RunSource`."""
        del output, is_resume
        lines = InputFile(self._path, reader)
        return lines, lines.check()

    def in_words(self, report: InputReport) -> str:
        """See `RunSource`."""
        return f"{report.num_lines:,} requests"

    def totals(self, report: InputReport) -> dict[str, int]:
        """See `RunSource`."""
        del report
        return {}

    def shown(self, row: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        """See `RunSource`."""
        if not is_success(row):
            return {}, failure_in_words(row)
        return {"answer": answer_text(row["response"]["body"])}, None


class TableRun:
    """A table whose columns become requests; a context manager that closes what it opens.

    Args:
        table: The rows.
        spec: What to ask for each row.
        kind: Format of the output: parquet, csv or jsonl.

    Raises:
        InvalidRequest: The prompt does not fit the columns, or an added column is there already.
    """

    noun = "row"
    common_fields = "--params"

    def __init__(self, table: "Table", spec: "TableSpec", kind: str) -> None:
        from gristmill.producer.tables.answer_columns import AnswerColumns
        from gristmill.producer.tables.request_maker import RequestMaker
        from gristmill.producer.tables.structured_answers import StructuredAnswers

        self._table = table
        self._spec = spec
        self._maker = RequestMaker(spec)
        self._maker.check_columns(table)
        structured = None if spec.schema is None else StructuredAnswers(spec.schema, kind)
        self._columns = AnswerColumns(spec.rename, table.columns, structured)
        self._stack = ExitStack()
        self.if_empty = f"{table.name} has no rows; name an input with rows"
        self.facts: Mapping[str, Any] = spec.facts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fingerprint(self) -> tuple[int, str]:
        """See `RunSource`."""
        return self._table.fingerprint()

    def open_output(self, path: Path) -> RunOutput:
        """See `RunSource`."""
        from gristmill.producer.tables.table_output import TableOutput

        return TableOutput(path, self._table, self._columns)

    def checked(
        self, reader: LineReader, output: Any, *, is_resume: bool
    ) -> tuple[RunInput, InputReport]:
        """See `RunSource`."""
        from gristmill.producer.tables.table_input import TableInput

        if output is None:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gristmill-"))
            plan = Path(folder) / "plan.sqlite"
        else:
            plan = output.plan_path(is_new=not is_resume)
        trial = None if output is None else output.trial()
        second = None if output is None else self._second_askings(reader)
        if second is not None:
            output.use_second(second)
        rows = TableInput(
            self._table,
            self._maker,
            reader,
            plan,
            skips_null=self._spec.skip_null,
            trial=trial,
            second=second,
        )
        self._stack.callback(rows.close)
        report = rows.restore() if is_resume else rows.check()
        if output is not None and rows.plan is not None:
            output.use_plan(rows.plan)
        _tell_unrun(report, skips=self._spec.skip_null)
        if self._spec.endpoint == CHAT and self._spec.limit is None and not is_resume:
            say("answers may be as long as the model allows; limit them with --max-tokens")
        return rows, report

    def _second_askings(self, reader: LineReader) -> "SecondAskings | None":
        """Return what asks a row again whose answer was cut; None if no second answer can be longer."""
        from gristmill.producer.tables.second_asking import SecondAskings

        limit = self._spec.limit
        if self._spec.schema is None or limit is None:
            return None
        return self._stack.enter_context(closing(SecondAskings(reader, self._spec.endpoint, limit)))

    def in_words(self, report: InputReport) -> str:
        """See `RunSource`."""
        files = len(self._table.files)
        return f"{report.num_lines:,} rows" + (f" of {files:,} files" if files > 1 else "")

    def totals(self, report: InputReport) -> dict[str, int]:
        """See `RunSource`."""
        from gristmill.producer.tables.table_input import TableReport

        if not isinstance(report, TableReport):
            raise TypeError("a table has a TableReport")
        return {"nulls": report.num_null, "copies": report.num_copies}

    def shown(self, row: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        """See `RunSource`."""
        return self._columns.shown(row)


def _tell_unrun(report: "TableReport", *, skips: bool) -> None:
    """Say which rows do not run themselves."""
    if report.num_null:
        what = (
            "are left unanswered" if skips else "get an error; --skip-null leaves them unanswered"
        )
        say(
            f"{report.num_null:,} of {report.num_lines:,} rows have a null in a used column and {what}"
        )
    if report.num_copies:
        say(
            f"{report.num_copies:,} of {report.num_lines:,} rows ask the same as an earlier row, which runs for them;"
            " --no-dedupe runs each"
        )

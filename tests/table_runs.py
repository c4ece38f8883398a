"""A table run without Redis: each request is answered in this process, by the rows that Redis would give."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from gristmill.producer.batches.rows import (
    BadLine,
    LineReader,
    SkippedRow,
    bad_line_row,
    skipped_row,
)
from gristmill.producer.batches.submit_run import RunRecord
from gristmill.producer.tables.answer_columns import AnswerColumns
from gristmill.producer.tables.request_maker import RequestMaker
from gristmill.producer.tables.second_asking import SecondAskings
from gristmill.producer.tables.spec import TableSpec
from gristmill.producer.tables.structured_answers import StructuredAnswers
from gristmill.producer.tables.table import Table
from gristmill.producer.tables.table_files import find_files
from gristmill.producer.tables.table_input import TableInput, TableReport
from gristmill.producer.tables.table_output import TableOutput
from gristmill.shared.request import Request

RUN = RunRecord(run="run", queue="q", input_bytes=1, input_digest="d", fields={})

MAX_REQUEST_BYTES = 2**20

MODEL_LENGTH = 1_000
"""Prompt and output tokens that the model can have."""


def prompt_of(request: Request) -> str:
    return str(orjson.loads(request.body)["messages"][-1]["content"])


def answered(request: Request) -> bytes:
    """Return the row of a request whose answer repeats the prompt."""
    return row_with(request, f"re: {prompt_of(request)}")


def row_with(request: Request, text: str, *, reason: str = "stop", output_tokens: int = 2) -> bytes:
    """Return the row of a request with this answer."""
    body = {
        "choices": [{"finish_reason": reason, "message": {"content": text}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": output_tokens},
    }
    response = {"status_code": 200, "request_id": request.id, "body": body}
    return orjson.dumps(
        {"id": f"batch_req_{request.id}", "custom_id": None, "response": response, "error": None}
    )


def table_of(*sources: object, has_types: bool = True) -> Table:
    return Table(find_files([str(source) for source in sources]), has_types=has_types)


@contextmanager
def opened(table: Table, spec: TableSpec, plan: Path) -> Iterator[tuple[TableInput, TableReport]]:
    """Open the requests of a table, checked."""
    maker = RequestMaker(spec)
    maker.check_columns(table)
    reader = LineReader(RUN.run, max_request_bytes=MAX_REQUEST_BYTES)
    rows = TableInput(table, maker, reader, plan, skips_null=spec.skip_null)
    try:
        yield rows, rows.check()
    finally:
        rows.close()


def requests_of(
    table: Table, spec: TableSpec, folder: Path
) -> list[Request | BadLine | SkippedRow]:
    with opened(table, spec, folder / "plan") as (rows, _):
        return [entry for _, entry in rows.entries()]


def run_table(
    sources: Sequence[object],
    output: Path,
    spec: TableSpec,
    *,
    answer: Callable[[Request], bytes] = answered,
    order: Callable[[list[Any]], Sequence[Any]] = list,
) -> list[str]:
    """Run a table from its files to its output, and return the ids of the requests that ran.

    Args:
        sources: Files of the input.
        output: The output.
        spec: What to ask.
        answer: Returns the row of a request; an error that it raises ends the process, as a kill would.
        order: Order in which the entries finish.
    """
    table = table_of(*sources, has_types=output.suffix == ".parquet")
    maker = RequestMaker(spec)
    maker.check_columns(table)
    ran: list[str] = []
    structured = StructuredAnswers(spec.schema, output.suffix[1:]) if spec.schema else None
    columns = AnswerColumns(spec.rename, table.columns, structured)
    with TableOutput(output, table, columns) as opened_output:
        is_resume = opened_output.begun_run(is_forced=False) is not None
        reader = LineReader(RUN.run, max_request_bytes=MAX_REQUEST_BYTES)
        plan = opened_output.plan_path(is_new=not is_resume)
        limit = spec.limit
        second = SecondAskings(reader, spec.endpoint, limit) if spec.schema and limit else None
        if second:
            opened_output.use_second(second)
        trial = opened_output.trial()
        rows = TableInput(
            table, maker, reader, plan, skips_null=spec.skip_null, trial=trial, second=second
        )
        report = rows.restore() if is_resume else rows.check()
        try:
            assert rows.plan is not None
            opened_output.use_plan(rows.plan)
            if not is_resume:
                opened_output.begin(RUN)
            written = opened_output.keep_whole_rows(RUN.run, report.num_lines)
            for _, entry in order(list(rows.entries(written.finished))):
                appended = opened_output.append(_row_of(entry, answer, ran))
                if appended.again:
                    opened_output.append(_row_of(appended.again(MODEL_LENGTH), answer, ran))
        finally:
            rows.close()
            if second:
                second.close()
        opened_output.finish({"total": report.num_lines, "failed": 0})
    return ran


def _row_of(
    entry: Request | BadLine | SkippedRow, answer: Callable[[Request], bytes], ran: list[str]
) -> bytes:
    if isinstance(entry, BadLine):
        return bad_line_row(RUN.run, entry)
    if isinstance(entry, SkippedRow):
        return skipped_row(RUN.run, entry)
    row = answer(entry)
    ran.append(entry.id)
    return row

"""The requests that a function of the caller makes."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from gristmill.producer.batches.rows import LineReader
from gristmill.producer.frames.called_requests import CalledRequests
from gristmill.producer.tables.memory_table import MemoryTable
from gristmill.producer.tables.spec import TableSpec
from gristmill.producer.tables.table_input import TableInput
from gristmill.shared.request import Request


def test_a_field_that_a_request_leaves_at_its_default_is_that_of_the_call(tmp_path: Path) -> None:
    def make(row: dict[str, Any]) -> Request:
        field = {row["name"]: row["value"]}
        return Request.from_body({"prompt": "x"}, **field)

    rows = MemoryTable(pa.table({"name": ["priority", "tenant"], "value": ["high", "own"]}))
    maker = CalledRequests(TableSpec(request=make))
    reader = LineReader(
        "run", max_request_bytes=10_000, defaults={"priority": "low", "tenant": "t"}
    )
    table = maker.table(rows, tmp_path / "lines")
    entries = TableInput(table, maker, reader, tmp_path / "plan", skips_null=True).entries()
    requests = [entry for _, entry in entries if isinstance(entry, Request)]
    found = [(request.endpoint, request.priority, request.tenant) for request in requests]
    assert found == [("/v1/completions", "high", "t"), ("/v1/completions", "low", "own")]

"""Write the rows of an input to nowhere before any request runs, so that the output cannot fail afterwards."""

from contextlib import suppress
from io import BytesIO
from typing import Any

import pyarrow as pa

from gristmill.producer.tables.row_chunks import Rows
from gristmill.producer.tables.table import Chunk, Table
from gristmill.producer.tables.table_writers import table_writer
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import one_line

_FAILURES = (pa.ArrowException, ValueError, TypeError, OverflowError)


class OutputTrial:
    """Tries the format of an output on each chunk.

    Args:
        kind: parquet, csv or jsonl.
        table: The input.
        answers: Schema of the answers.
    """

    def __init__(self, kind: str, table: Table, answers: Any) -> None:
        self._kind = kind
        self._table = table
        self._answers = answers

    def check(self, chunk: Chunk) -> None:
        """Refuse rows that the output cannot hold.

        Raises:
            InvalidRequest: A row does not fit; the message has the row, the cause and the remedy.
        """
        try:
            self._write(chunk.rows)
        except _FAILURES as error:
            where = chunk.where(chunk.first + self._first_bad(chunk.rows))
            raise InvalidRequest(
                f"{where} cannot be written as {self._kind}: {one_line(str(error), 300)}; correct or remove the"
                " value, or write another format with -o"
            ) from None

    def _write(self, rows: Rows) -> None:
        answers = [pa.nulls(len(rows), field.type) for field in self._answers]
        writer = table_writer(self._kind, BytesIO(), self._table, self._answers)
        writer.write(rows, pa.RecordBatch.from_arrays(answers, schema=self._answers))
        writer.close()

    def _first_bad(self, rows: Rows) -> int:
        """Return the first row that fails alone; the first row of all if none does."""
        for index in range(len(rows)):
            failed = True
            with suppress(*_FAILURES):
                self._write(rows.slice(index, index + 1))
                failed = False
            if failed:
                return index
        return 0

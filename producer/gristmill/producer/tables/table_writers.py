"""Write the columns of the input and those of the answers side by side: Parquet, CSV or JSONL."""

from pathlib import Path
from typing import Any, BinaryIO, Protocol

import orjson
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from gristmill.producer.tables.row_chunks import Rows, json_value
from gristmill.producer.tables.structured_answers import HOLDS_JSON
from gristmill.producer.tables.table import Table
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import json_line

OUTPUTS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl"}
"""Extension of an output -> its format."""

GROUP_ROWS, GROUP_BYTES = 65_536, 32 * 2**20
"""Rows or bytes after which a row group of Parquet ends. A group is in memory while it is written."""


class TableWriter(Protocol):
    """Writes an output in the order of the rows."""

    def write(self, rows: Rows, answers: Any) -> None:
        """Write rows of the input and the Arrow batch of their answers."""
        ...

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        ...


def output_kind(output: Path) -> str:
    """Return the format that an output's extension tells.

    Raises:
        InvalidRequest: It tells none.
    """
    kind = OUTPUTS.get(output.suffix.lower())
    if kind is None:
        raise InvalidRequest(
            f"-o {output}: its extension tells no format; use {', '.join(OUTPUTS)}"
        )
    return kind


def table_writer(kind: str, file: BinaryIO, table: Table, answers: Any) -> TableWriter:
    """Return the writer of a format.

    Args:
        kind: parquet, csv or jsonl.
        file: Open file.
        table: The input.
        answers: Schema of the answers.
    """
    if kind == "parquet":
        return _ParquetTable(file, table.schema, answers)
    if kind == "csv":
        return _CsvTable(file, table.columns, answers)
    return _JsonTable(file, answers)


class _ParquetTable:
    def __init__(self, file: BinaryIO, schema: Any, answers: Any) -> None:
        self._input = schema
        self._schema = pa.schema([*schema, *answers], metadata=schema.metadata)
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")
        self._group: list[Any] = []
        self._num_rows = self._num_bytes = 0

    def write(self, rows: Rows, answers: Any) -> None:
        arrays = [*rows.batch(self._input).columns, *answers.columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._group.append(batch)
        self._num_rows += batch.num_rows
        self._num_bytes += batch.nbytes
        if self._num_rows >= GROUP_ROWS or self._num_bytes >= GROUP_BYTES:
            self._end_group()

    def close(self) -> None:
        self._end_group()
        self._writer.close()

    def _end_group(self) -> None:
        if self._group:
            table = pa.Table.from_batches(self._group, self._schema)
            self._writer.write_table(table, row_group_size=max(1, self._num_rows))
        self._group, self._num_rows, self._num_bytes = [], 0, 0


class _CsvTable:
    def __init__(self, file: BinaryIO, columns: list[str], answers: Any) -> None:
        self._file = file
        self._columns = columns
        self._names = [*columns, *answers.names]
        self._writer: Any = None

    def write(self, rows: Rows, answers: Any) -> None:
        arrays = [*rows.texts(self._columns), *answers.columns]
        batch = pa.RecordBatch.from_arrays(arrays, self._names)
        if self._writer is None:
            self._writer = arrow_csv.CSVWriter(self._file, batch.schema)
        self._writer.write_batch(batch)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _JsonTable:
    def __init__(self, file: BinaryIO, answers: Any) -> None:
        self._file = file
        self._of_json = [each.name for each in answers if each.metadata == HOLDS_JSON]

    def write(self, rows: Rows, answers: Any) -> None:
        for row, answer in zip(rows.dicts(), answers.to_pylist(), strict=True):
            for name in self._of_json:
                answer[name] = answer[name] and orjson.Fragment(answer[name])
            self._file.write(json_line(row | answer, orjson.OPT_NON_STR_KEYS, json_value))

    def close(self) -> None:
        pass

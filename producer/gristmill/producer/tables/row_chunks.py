"""A chunk of rows, from Arrow or from JSON, with the same three views of its values."""

import base64
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Protocol

import orjson
import pyarrow as pa

Row = dict[str, Any]
"""The values of one row by column."""


class Rows(Protocol):
    """Rows of a table that were read together."""

    def __len__(self) -> int: ...

    def dicts(self, columns: Sequence[str] | None = None) -> list[Row]:
        """Return the rows as Python values.

        Args:
            columns: Columns that are needed; a row may have others too. None for all.
        """
        ...

    def batch(self, schema: Any) -> Any:
        """Return the rows as one Arrow batch of a schema."""
        ...

    def texts(self, columns: Sequence[str]) -> list[Any]:
        """Return an Arrow array for each column, for CSV: nested values as JSON, bytes as base64."""
        ...

    def slice(self, start: int, stop: int) -> "Rows":
        """Return some of the rows."""
        ...


class ArrowRows:
    """Rows of an Arrow batch."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def dicts(self, columns: Sequence[str] | None = None) -> list[Row]:
        """See `Rows`."""
        wanted = self._batch if columns is None else self._batch.select(list(columns))
        return list(_to_microseconds(wanted).to_pylist())

    def batch(self, schema: Any) -> Any:
        """See `Rows`."""
        if self._batch.schema.equals(schema):
            return self._batch.replace_schema_metadata(schema.metadata)
        table = pa.Table.from_batches([self._batch]).select(schema.names).cast(schema)
        return table.combine_chunks().to_batches()[0]

    def texts(self, columns: Sequence[str]) -> list[Any]:
        """See `Rows`."""
        return [_csv_array(self._batch.column(name)) for name in columns]

    def slice(self, start: int, stop: int) -> "ArrowRows":
        """See `Rows`."""
        return ArrowRows(self._batch.slice(start, stop - start))


class JsonRows:
    """Rows of a JSONL file. A row may lack a column; its value is null then."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def dicts(self, columns: Sequence[str] | None = None) -> list[Row]:
        """See `Rows`."""
        return self._rows

    def batch(self, schema: Any) -> Any:
        """See `Rows`."""
        return pa.RecordBatch.from_pylist(self._rows, schema=schema)

    def texts(self, columns: Sequence[str]) -> list[Any]:
        """See `Rows`."""
        return [
            pa.array([_csv_text(row.get(name)) for row in self._rows], pa.string())
            for name in columns
        ]

    def slice(self, start: int, stop: int) -> "JsonRows":
        """See `Rows`."""
        return JsonRows(self._rows[start:stop])


def json_value(value: Any) -> Any:
    """Return a value as JSON has it, for orjson's `default`: bytes as base64, a decimal as text.

    Raises:
        TypeError: JSON has no form for it.
    """
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    return str(value)


def json_text(value: Any) -> str:
    """Return a value as JSON."""
    return orjson.dumps(value, default=json_value, option=orjson.OPT_NON_STR_KEYS).decode()


def _csv_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value)


def _csv_array(column: Any) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if isinstance(kind, pa.BaseExtensionType):
        column, kind = column.storage, kind.storage_type
    if pa.types.is_null(kind):
        return column.cast(pa.string())
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if not (pa.types.is_nested(kind) or is_binary or pa.types.is_fixed_size_binary(kind)):
        return column
    values = (
        json_value(value) if isinstance(value, bytes) else value for value in column.to_pylist()
    )
    return pa.array([_csv_text(value) for value in values], pa.string())


def _to_microseconds(batch: Any) -> Any:
    """Return a batch whose moments fit into Python's own types, which have no nanoseconds."""
    for index, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            kind = pa.timestamp("us", field.type.tz)
        elif pa.types.is_time64(field.type) and field.type.unit == "ns":
            kind = pa.time64("us")
        else:
            continue
        cast = batch.column(index).cast(kind, safe=False)
        batch = batch.set_column(index, field.with_type(kind), cast)
    return batch

"""Find the columns of a JSONL file, and their types if the output needs types."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from gristmill.producer.tables.readers import read_rows
from gristmill.producer.tables.row_chunks import Row
from gristmill.producer.tables.table_files import TableFile
from gristmill.shared.errors import InvalidRequest


def json_schema(files: Sequence[TableFile], *, has_types: bool) -> Any:
    """Return the columns of JSONL files, in the order in which they first occur.

    Args:
        files: Files of one table. They are read whole.
        has_types: True finds the type of each column. False gives each the type null, since an output
            of JSON or text keeps each value as it is.

    Raises:
        InvalidRequest: A column has values of types that no one type holds.
    """
    types: dict[str, Any] = {}
    for file in files:
        for first, rows in read_rows(file):
            values = rows.dicts()
            for name in {name: None for row in values for name in row}:
                known = types.setdefault(name, pa.null())
                if has_types:
                    types[name] = _joined(known, values, name, file, first)
    return pa.schema(list(types.items()))


def _joined(known: Any, rows: Sequence[Row], name: str, file: TableFile, first: int) -> Any:
    """Return a type that holds a column's earlier values and those of these rows."""
    try:
        found = pa.array([row.get(name) for row in rows]).type
        return _one_type(known, found)
    except (pa.ArrowException, TypeError, OverflowError):
        number, found = _culprit(known, rows, name)
        raise InvalidRequest(
            f"{file.name} row {first + number:,}: column {name!r} is {found} here and {known} before; give it one"
            " type, or write an output of JSONL, which keeps values as they are"
        ) from None


def _culprit(known: Any, rows: Sequence[Row], name: str) -> tuple[int, str]:
    """Return the first row whose value does not fit to those before, from 1, and the type of the value."""
    for number, row in enumerate(rows, 1):
        try:
            known = _one_type(known, pa.array([row.get(name)]).type)
        except (pa.ArrowException, TypeError, OverflowError):
            return number, type(row.get(name)).__name__
    return len(rows), "of another type"


def _one_type(one: Any, other: Any) -> Any:
    schemas = [pa.schema([("value", kind)]) for kind in (one, other)]
    return pa.unify_schemas(schemas, promote_options="permissive").field("value").type

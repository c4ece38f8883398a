"""The requests that a function of the caller makes from the rows of a table.

The function is called once for each row, before any request is submitted: an error in it costs nothing then. The
requests wait in a file, so that they need no memory.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from gristmill.producer.arguments import kind_of
from gristmill.producer.tables.memory_table import MemoryTable
from gristmill.producer.tables.row_chunks import Row
from gristmill.producer.tables.spec import TableSpec, is_greedy
from gristmill.producer.tables.table import AnyTable
from gristmill.shared.disk_errors import disk_errors
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import EXAMPLE, Request

_LINE = "line"
_SCHEMA = pa.schema([(_LINE, pa.large_binary())])

_KEPT_FIELDS = ("priority", "tenant", "batch", "deadline_s", "delay_s", "max_attempts", "metadata")
"""Fields of a `Request` that its row keeps, unless they have their default. It also keeps the endpoint.

A keyword of the call counts instead of a default. The id is the run's, and other fields are read from the body again.
"""

_DEFAULTS = {known.name: known.default for known in fields(Request)}


class CalledRequests:
    """Makes the lines of a table, and reads them from the table that has them.

    Args:
        spec: The function, and the fields that all bodies share; a body may set a field of `params` otherwise.
    """

    columns = (_LINE,)

    def __init__(self, spec: TableSpec) -> None:
        if spec.request is None:
            raise TypeError("the spec has no function")
        self._function = spec.request
        self._defaults = dict(spec.params)
        if spec.model is not None:
            self._defaults["model"] = spec.model
        self._constraint = spec.constraint
        self._dedupe = spec.dedupe

    def table(self, rows: AnyTable, path: Path) -> MemoryTable:
        """Call the function for each row, and return the table of the lines, which lies in a file.

        Args:
            rows: The caller's table.
            path: Path of the file.

        Raises:
            InvalidRequest: The function returned no request.
            Exception: The function raised it; it has a note with the row.
        """
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, _SCHEMA) as writer:
            for chunk in rows.chunks():
                lines = [
                    self._made(chunk.where(number), row)
                    for number, row in enumerate(chunk.dicts(None), chunk.first)
                ]
                with disk_errors(path, "make room there, or name another folder with TMPDIR"):
                    writer.write_batch(pa.record_batch([lines], schema=_SCHEMA))
        return MemoryTable(pa.ipc.open_file(pa.memory_map(str(path))).read_all())

    def null_in(self, row: Mapping[str, Any]) -> str | None:
        """Return a name if the function returned None for a row."""
        return _LINE if row[_LINE] is None else None

    def line(self, row: Mapping[str, Any]) -> bytes:
        """Return the line of a row."""
        return bytes(row[_LINE])

    def is_shared(self, request: Request) -> bool:
        """Return whether a request and others like it run once: by default at temperature 0."""
        return is_greedy(orjson.loads(request.body)) if self._dedupe is None else self._dedupe

    def _made(self, where: str, row: Row) -> bytes | None:
        try:
            made = self._function(row)
        except Exception as error:
            error.add_note(f"request was called with {where}")
            raise
        if made is None:
            return None
        if isinstance(made, Request):
            own, body = _own_fields(made), orjson.loads(made.body)
        elif isinstance(made, Mapping):
            own, body = {}, made
        else:
            raise InvalidRequest(
                f"{where}: request returned {kind_of(made)}; return a body such as {EXAMPLE}, a Request, or None"
                " to leave the row unanswered"
            )
        try:
            return orjson.dumps(own | {"body": self._defaults | dict(body) | self._constraint})
        except TypeError as error:
            raise InvalidRequest(
                f"{where}: request returned a body that has no JSON: {error}; use texts, numbers, lists and dicts"
            ) from None


def _own_fields(request: Request) -> dict[str, Any]:
    """Return the fields that a request sets itself."""
    values = {name: getattr(request, name) for name in _KEPT_FIELDS}
    changed = {name: value for name, value in values.items() if value != _DEFAULTS[name]}
    return {"endpoint": request.endpoint} | changed

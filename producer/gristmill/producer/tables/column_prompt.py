"""`--prompt`: a text with `{column}` for the value of a column."""

import string
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from gristmill.producer.tables.row_chunks import json_text
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import shown

Message = dict[str, Any]
"""One message of a chat."""

_AS_THEY_PRINT = (int, float, Decimal)


class ColumnPrompt:
    """A prompt whose fields are columns. `{{` and `}}` stand for braces.

    Args:
        text: The prompt.

    Attributes:
        used: Columns whose values it needs.
        has_whole_row: Always false: it needs no other columns.

    Raises:
        InvalidRequest: It has an unmatched brace, or a field that is more than a column.
    """

    has_whole_row = False

    def __init__(self, text: str) -> None:
        try:
            self._pieces = [self._piece(*parsed) for parsed in string.Formatter().parse(text)]
        except ValueError as error:
            raise InvalidRequest(
                f"--prompt cannot be read: {error}; write {{{{ and }}}} for braces that are no column"
            ) from None
        self.used = tuple(dict.fromkeys(name for _, name in self._pieces if name is not None))

    def messages(self, row: Mapping[str, Any]) -> list[Message]:
        """Return the user's message for a row."""
        return [{"role": "user", "content": self.text(row)}]

    def text(self, row: Mapping[str, Any]) -> str:
        """Return the prompt for a row.

        Raises:
            InvalidRequest: A value is no text, number, date, list or record.
        """
        return "".join(
            before if name is None else before + as_text(name, row.get(name))
            for before, name in self._pieces
        )

    @staticmethod
    def _piece(
        before: str, name: str | None, spec: str | None, conversion: str | None
    ) -> tuple[str, str | None]:
        """Return one part of the text, and the column after it."""
        if name == "" or spec or conversion:
            raise InvalidRequest(
                f"--prompt has a field {{{name}}} with more than a column's name or without one; write {{column}},"
                " {{ and }} for braces, or use --template to format values"
            )
        return before, name


def as_text(column: str, value: Any) -> str:
    """Return a value as it stands in a prompt: lists, records and booleans as JSON.

    Raises:
        InvalidRequest: It is bytes, or of another type without a text.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, bool | dict | list | tuple):
        return json_text(value)
    if isinstance(value, _AS_THEY_PRINT):
        return str(value)
    raise InvalidRequest(
        f"column {column!r} is {type(value).__name__} ({shown(value)}), which has no text; convert it to text,"
        " or name it as the column of images"
    )

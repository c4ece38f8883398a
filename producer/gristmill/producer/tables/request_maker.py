"""Turn a row into the body of its request."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import orjson
import pyarrow as pa

from gristmill.producer.tables.column_prompt import ColumnPrompt
from gristmill.producer.tables.images import image_url, with_image
from gristmill.producer.tables.spec import TableSpec
from gristmill.producer.tables.table import AnyTable
from gristmill.producer.tables.template_prompt import TemplatePrompt
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import CHAT, Request


class RequestMaker:
    """Makes the bodies of one table.

    Args:
        spec: What to ask.

    Attributes:
        used: Columns whose nulls leave a row without a request.

    Raises:
        InvalidRequest: The prompt or the template is wrong.
    """

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._prompt = (
            ColumnPrompt(spec.prompt)
            if spec.prompt is not None
            else TemplatePrompt(spec.template or "")
        )
        self._constant = spec.shared_fields | spec.constraint
        if spec.model is not None:
            self._constant["model"] = spec.model
        system = spec.system
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.used = tuple(dict.fromkeys([*self._prompt.used, *filter(None, [spec.image])]))

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Columns that a row must bring; None for all."""
        return None if self._prompt.has_whole_row else self.used

    def check_columns(self, table: AnyTable) -> None:
        """Refuse a table that lacks a column, or has one of an unfit type.

        Raises:
            InvalidRequest: A column is missing or unfit; the message has the table and the remedy.
        """
        if isinstance(self._prompt, TemplatePrompt):
            self._check_functions(self._prompt, table)
        for name in self.used:
            if name not in table.columns:
                raise InvalidRequest(self._missing(name, table))
            if table.has_types:
                self._check_type(name, table)
        if not self.used and not self._prompt.has_whole_row:
            raise InvalidRequest(
                "the prompt names no column, so all rows would ask the same; write {column} where a value goes"
            )

    def null_in(self, row: Mapping[str, Any]) -> str | None:
        """Return the first used column that is null in a row, or None."""
        return next((name for name in self.used if row.get(name) is None), None)

    def line(self, row: Mapping[str, Any]) -> bytes:
        """Return the request of a row as a line of a file, which `LineReader` reads.

        Raises:
            InvalidRequest: A value does not fit.
            TypeError, ValueError: A value has no JSON.
        """
        return orjson.dumps({"body": self.body(row), "endpoint": self._spec.endpoint})

    def is_shared(self, request: Request) -> bool:
        """Return whether a request and others like it run once."""
        del request  # all have the same parameters
        return self._spec.is_deduping

    def body(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of a row's request.

        Raises:
            InvalidRequest: A value does not fit.
        """
        if self._spec.endpoint != CHAT:
            return self._constant | {"prompt": self._prompt.text(row)}
        messages = self._prompt.messages(row)
        if (image := self._spec.image) is not None:
            messages = with_image(messages, image_url(image, row.get(image)))
        return self._constant | {"messages": [*self._system, *messages]}

    @staticmethod
    def _check_functions(prompt: TemplatePrompt, table: AnyTable) -> None:
        """Refuse a name that is a function of Jinja and a column, too."""
        for name in sorted(prompt.functions & set(table.columns)):
            raise InvalidRequest(
                f"--template names {name!r}, a function of Jinja and a column of {table.name}, too; write row.{name}"
                " for the column, or rename the column to call the function"
            )

    def _missing(self, name: str, table: AnyTable) -> str:
        if not table.columns:
            return f"{table.name} has no rows; name an input with rows"
        option = next(option for option, names in self._names_by_option() if name in names)
        near = get_close_matches(name, table.columns, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        if separator := _other_separator(table):
            hint = f"the file seems to separate its columns by {separator!r}: write it with commas, or as .tsv with tabs; "
        shown = ", ".join(table.columns[:20])
        more = f" and {len(table.columns) - 20} more" if len(table.columns) > 20 else ""
        return f"{option} names the column {name!r}, which {table.name} does not have; {hint}its columns are {shown}{more}"

    def _names_by_option(self) -> list[tuple[str, Iterable[str]]]:
        option = "--template" if self._spec.prompt is None else "--prompt"
        return [(option, self._prompt.used), ("--image", [self._spec.image or ""])]

    def _check_type(self, name: str, table: AnyTable) -> None:
        kind = table.schema.field(name).type
        is_image = name == self._spec.image
        if is_image and not (_is_text(kind) or _is_bytes(kind) or pa.types.is_struct(kind)):
            raise InvalidRequest(
                f"{table.name}: column {name!r} is {kind}; --image needs URLs or the bytes of images"
            )
        if not is_image and _is_bytes(kind) and isinstance(self._prompt, ColumnPrompt):
            raise InvalidRequest(
                f"{table.name}: column {name!r} is {kind}, which has no text; convert it to text, or name it with"
                " --image if it has images"
            )


def _other_separator(table: AnyTable) -> str | None:
    """Return what separates the names in the only column of a file without types; None if nothing does."""
    if table.has_types or len(table.columns) != 1:
        return None
    return next((mark for mark in (";", "\t", "|", ",") if mark in table.columns[0]), None)


def _is_text(kind: Any) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(
        pa.types.is_string(value)
        or pa.types.is_large_string(value)
        or pa.types.is_string_view(value)
    )


def _is_bytes(kind: Any) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )

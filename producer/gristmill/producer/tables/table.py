"""All files of an input as one table with one schema."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from gristmill.producer.tables.json_types import json_schema
from gristmill.producer.tables.readers import read_rows, schema_of
from gristmill.producer.tables.row_chunks import Row, Rows
from gristmill.producer.tables.table_files import TableFile, combined_fingerprint
from gristmill.shared.errors import InvalidRequest

_FOREIGN_METADATA = b"huggingface"
"""Metadata of `datasets`, which lists the columns of the input. It would hide the added ones."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of a table.

    Attributes:
        file_name: File that has them; "" for rows in memory.
        first: Number of the first one in the table, from 1.
        first_in_file: Number of the first one in the file, from 1.
        rows: The rows.
        noun: Name of a row in messages.
    """

    file_name: str
    first: int
    first_in_file: int
    rows: Rows
    noun: str = "row"

    def __len__(self) -> int:
        return len(self.rows)

    def dicts(self, columns: Sequence[str] | None) -> list[Row]:
        """Return the rows as Python values.

        Raises:
            InvalidRequest: Python has no such value, such as a year after 9999.
        """
        try:
            return self.rows.dicts(columns)
        except (ValueError, OverflowError) as error:
            raise InvalidRequest(
                f"{self.where(self.first)} or one of the next {len(self) - 1:,} rows has a value that Python cannot"
                f" read: {error}; correct it"
            ) from None

    def where(self, number: int) -> str:
        """Return file and row of a row of the table, for messages."""
        row = f"{self.noun} {self.first_in_file + number - self.first:,}"
        return f"{self.file_name} {row}" if self.file_name else row


class AnyTable(Protocol):
    """What a run needs of a table: `Table` has it, and so has `MemoryTable`."""

    @property
    def schema(self) -> Any:
        """Columns with their types."""
        ...

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        ...

    @property
    def has_types(self) -> bool:
        """True if the input itself tells types."""
        ...

    @property
    def name(self) -> str:
        """Name of the input for messages."""
        ...

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Yield the rows in their order; see `Table.chunks`."""
        ...


class Table:
    """The rows of several files of one format.

    Args:
        files: Files, in their order.
        has_types: True if the output needs the types of JSONL columns.

    Attributes:
        files: Files, in their order.
        schema: Columns with their types; the type of a JSONL column is null without `has_types`.

    Raises:
        InvalidRequest: A file is damaged, or the files have different columns.
    """

    def __init__(self, files: Sequence[TableFile], *, has_types: bool) -> None:
        self.files = files
        self._versions = [file.version() for file in files]
        if files[0].kind == "jsonl":
            self.schema = json_schema(files, has_types=has_types)
        else:
            self.schema = _common_schema(files)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    @property
    def has_types(self) -> bool:
        """True if the files themselves tell types."""
        return self.files[0].kind in ("parquet", "arrow")

    @property
    def name(self) -> str:
        """Name of the input for messages."""
        more = len(self.files) - 1
        return self.files[0].name + (f" and {more:,} more" if more else "")

    def fingerprint(self) -> tuple[int, str]:
        """Return the bytes of all files and a digest."""
        return combined_fingerprint(self.files)

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Yield the rows in their order.

        Args:
            start: Rows at the beginning that are not needed; the first chunk may still have some.
        """
        before = 0
        for file in self.files:
            end = before
            for first, rows in read_rows(file, max(0, start - before), self.columns):
                end = before + first + len(rows)
                if end > start:
                    yield Chunk(file.name, before + first + 1, first + 1, rows, file.row_noun)
            before = end

    def check_unchanged(self) -> None:
        """Refuse to go on if a file was written since the table was opened.

        Raises:
            InvalidRequest: A file was written.
        """
        for file, version in zip(self.files, self._versions, strict=True):
            if file.version() != version:
                raise InvalidRequest(
                    f"{file.name} was written during the run, so rows and answers may not fit; put the earlier file"
                    " back and repeat the command: all answers so far are kept"
                )


def _common_schema(files: Sequence[TableFile]) -> Any:
    first = schema = schema_of(files[0])
    for file in files[1:]:
        other = schema_of(file)
        if missing := sorted(set(first.names) ^ set(other.names)):
            has, lacks = (files[0], file) if missing[0] in first.names else (file, files[0])
            raise InvalidRequest(
                f"{has.name} has a column {missing[0]!r}, {lacks.name} has not; give all files the same columns,"
                " or run them one by one"
            )
        try:
            schema = pa.unify_schemas([schema, other], promote_options="permissive")
        except pa.ArrowException as error:
            raise InvalidRequest(
                f"{file.name} has other types than the files before: {error}; convert it to the same types"
            ) from None
    kept = {
        name: text for name, text in (first.metadata or {}).items() if name != _FOREIGN_METADATA
    }
    return schema.with_metadata(kept)

"""Read a CSV file with pyarrow, and refuse what its parser takes in silence; `readers` calls it.

The parser closes an open quote at the end of a file. So one stray quote would turn all rows after it into one
text. `_MarkedEnd` therefore adds a last row that no file has. A quote was open there if the parser does not
report this row.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv

from gristmill.producer.tables.table_files import TableFile
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import shown

BLOCK_BYTES = 4 * 2**20
"""Bytes of a CSV file that are parsed at a time; a row cannot be longer."""

_MARK = "gristmill-end-of-file-5b1c"


class CsvRows:
    """The rows of one CSV file. All values are text; an empty field without quotes is null.

    Args:
        file: The file, for its separator and for messages.
        stream: Its bytes.
        columns: Its columns; empty to read the header only.
    """

    def __init__(self, file: TableFile, stream: Any, columns: Sequence[str] = ()) -> None:
        self._file = file
        self._columns = columns
        num_fields = 2 if len(columns) == 1 else 1  # another number than a row has
        self._mark = _separator(file).join([_MARK] * num_fields)
        self._stream = _MarkedEnd(stream, f"\n{self._mark}\n".encode())
        self._has_mark = False
        self._refused: InvalidRequest | None = None
        self._num_rows = 0

    def header(self) -> list[str]:
        """Return the names of the columns.

        Raises:
            InvalidRequest: There is no header, or a quote in it is never closed.
        """
        try:
            names: list[str] = self._reader().schema.names
        except pa.ArrowInvalid as error:
            is_endless = "Empty CSV" in str(error)  # no line ends, though the mark's does
            raise self._unclosed("header") if is_endless else error from None
        if names == [_MARK]:
            raise InvalidRequest(f"{self._file.name} has no rows; name an input with rows")
        return names

    def batches(self) -> Iterator[tuple[int, Any]]:
        """Yield record batches, each with the number of rows before it.

        Raises:
            InvalidRequest: A row has another number of fields than the header, or a quote is never closed.
        """
        try:
            for batch in self._reader():
                first, self._num_rows = self._num_rows, self._num_rows + batch.num_rows
                yield first, batch
        except pa.ArrowInvalid as error:
            raise self._refused or self._named(error) or error from None
        if not self._has_mark:
            raise self._unclosed(f"{self._file.row_noun} {self._num_rows:,}")

    def _reader(self) -> Any:
        return arrow_csv.open_csv(
            self._stream,
            read_options=arrow_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=arrow_csv.ParseOptions(
                delimiter=_separator(self._file),
                newlines_in_values=True,
                invalid_row_handler=self._on_unfit_row if self._columns else _skip,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(self._columns, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def _on_unfit_row(self, row: Any) -> str:
        """Pass over the mark; keep why another row is refused."""
        if row.text == self._mark:
            self._has_mark = True
            return "skip"
        place = f"{self._file.row_noun} {row.number - 1:,}"  # the parser counts the header
        if row.text.endswith(self._mark):
            self._refused = self._unclosed(place)
        else:
            self._refused = InvalidRequest(
                f"{self._file.name} {place} has {row.actual_columns:,} fields, and the header has"
                f" {row.expected_columns:,}: {shown(row.text)}; correct the row, and quote values with the separator"
            )
        return "error"

    def _named(self, error: pa.ArrowInvalid) -> InvalidRequest | None:
        """Return an error of the parser in words for its cause; None for a rare one."""
        if "straddling object" in str(error):
            return InvalidRequest(
                f"{self._file.name} {self._file.row_noun} {self._num_rows + 1:,} is longer than {BLOCK_BYTES // 2**20} MiB, or a quote in"
                " it is never closed; close or remove the quote, or write the file as Parquet"
            )
        if "invalid UTF8" in str(error):
            found = re.search(r"Row #(\d+)", str(error))
            place = f" {self._file.row_noun} {int(found[1]) - 1:,}" if found else ""
            return InvalidRequest(
                f"{self._file.name}{place} is not UTF-8; convert the file, for example with: iconv -f latin1 -t utf-8"
            )
        return None

    def _unclosed(self, place: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self._file.name} {place} has an unclosed quote, which takes in the rest of the file; close or remove"
            " the quote"
        )


class _MarkedEnd:
    """A readable file with more bytes after its last one."""

    closed = False  # pyarrow asks

    def __init__(self, stream: Any, end: bytes) -> None:
        self._stream = stream
        self._end = end
        self._left = b""
        self._has_ended = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Leave the stream to its owner."""

    def read(self, num_bytes: int) -> bytes:
        """Return as many bytes, or all that are left."""
        data = self._left
        while len(data) < num_bytes and not self._has_ended:
            more = self._stream.read(num_bytes - len(data))
            self._has_ended = not more
            data += more or self._end
        self._left = data[num_bytes:]
        return data[:num_bytes]


def _skip(row: Any) -> str:
    del row
    return "skip"


def _separator(file: TableFile) -> str:
    return "\t" if file.kind == "tsv" else ","

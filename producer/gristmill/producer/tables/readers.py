"""Read one file of a table as chunks of rows, in memory bounded by a chunk."""

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.producer.batches.rows import lines_of, take_lines
from gristmill.producer.tables.csv_rows import CsvRows
from gristmill.producer.tables.row_chunks import ArrowRows, JsonRows, Rows
from gristmill.producer.tables.table_files import TableFile
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.file_format import check_start
from gristmill.shared.one_line import one_line

CHUNK_ROWS = 1_024
"""Most rows of a chunk."""

CHUNK_BYTES = 8 * 2**20
"""Bytes of a chunk; larger rows come in smaller chunks from Parquet and from memory."""

READ_BYTES = 2**20
"""Bytes of one read of a Parquet column."""

MAX_LINE_BYTES = 2**28
"""Most bytes of a JSON line that are read."""


@dataclass
class Progress:
    """How far a file is read, for messages.

    Attributes:
        num_rows: Rows that were read.
    """

    num_rows: int = 0


def schema_of(file: TableFile) -> Any:
    """Return the columns of a file with their types; None for JSONL, which has none.

    Raises:
        InvalidRequest: The file is damaged, or of another format than its name says.
    """
    if file.kind == "jsonl":
        return None
    with damage_named(file, Progress()), file.open() as stream:
        if file.kind == "parquet":
            schema = pq.ParquetFile(stream).schema_arrow
        elif file.kind == "arrow":
            schema = _arrow_reader(stream)[0]
        else:
            schema = pa.schema([(name, pa.string()) for name in CsvRows(file, stream).header()])
    twice = sorted(name for name, number in Counter(schema.names).items() if number > 1)
    if twice:
        raise InvalidRequest(
            f"{file.name} has several columns {twice[0]!r}; give each its own name"
        )
    return schema


def read_rows(
    file: TableFile, start: int = 0, columns: Sequence[str] = ()
) -> Iterator[tuple[int, Rows]]:
    """Yield chunks of a file, each with the number of rows before it.

    Args:
        file: File to read.
        start: Rows that are not needed. The reader leaves them out where it can do so without reading them.
        columns: Columns of the file, which only CSV needs, to read each as text.

    Raises:
        InvalidRequest: The file is damaged; the message has the last good row.
    """
    progress = Progress()
    with damage_named(file, progress), file.open() as stream:
        for first, rows in _READERS[file.kind](file, stream, start, columns):
            progress.num_rows = first + len(rows)
            for low in range(0, len(rows), CHUNK_ROWS):
                yield first + low, rows.slice(low, min(low + CHUNK_ROWS, len(rows)))


def rows_of_chunk(num_rows: int, num_bytes: int) -> int:
    """Return how many rows a chunk has, by the mean size of the rows."""
    row_bytes = max(1, num_bytes // max(1, num_rows))
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes))


@contextmanager
def damage_named(file: TableFile, progress: Progress) -> Iterator[None]:
    """Turn what a reader raises into an error that names the file, the row and the remedy."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise InvalidRequest(f"no file {file.name!r}; it was there a moment ago") from None
        reason = one_line(str(error), 300).rstrip(".")
        row = f" after {file.row_noun} {progress.num_rows:,}" if progress.num_rows else ""
        raise InvalidRequest(
            f"{file.name} cannot be read as {file.kind}{row}: {reason}; correct the file,"
            " or write or download it again"
        ) from None


def _read_parquet(
    file: TableFile, stream: Any, start: int, columns: Sequence[str]
) -> Iterator[tuple[int, Rows]]:
    del file, columns
    parquet = pq.ParquetFile(stream, buffer_size=READ_BYTES, pre_buffer=False)
    first = 0
    for group in range(parquet.num_row_groups):
        facts = parquet.metadata.row_group(group)
        if first + facts.num_rows <= start:
            first += facts.num_rows
            continue
        size = rows_of_chunk(facts.num_rows, facts.total_byte_size)
        for batch in parquet.iter_batches(size, row_groups=[group], use_threads=False):
            yield first, ArrowRows(batch)
            first += batch.num_rows


def _read_arrow(
    file: TableFile, stream: Any, start: int, columns: Sequence[str]
) -> Iterator[tuple[int, Rows]]:
    del file, start, columns
    first = 0
    for batch in _arrow_reader(stream)[1]:
        yield first, ArrowRows(batch)
        first += batch.num_rows


def _arrow_reader(stream: Any) -> tuple[Any, Iterator[Any]]:
    """Return schema and batches of Arrow's file format, which Feather is, or of its stream format."""
    start = stream.read(6)
    stream.seek(0)
    if start != b"ARROW1":
        reader = pa.ipc.open_stream(stream)
        return reader.schema, iter(reader)
    in_file = pa.ipc.open_file(stream)
    batches = (in_file.get_batch(number) for number in range(in_file.num_record_batches))
    return in_file.schema, batches


def _read_csv(
    file: TableFile, stream: Any, start: int, columns: Sequence[str]
) -> Iterator[tuple[int, Rows]]:
    del start
    for first, batch in CsvRows(file, stream, columns).batches():
        yield first, ArrowRows(batch)


def _read_jsonl(
    file: TableFile, stream: Any, start: int, columns: Sequence[str]
) -> Iterator[tuple[int, Rows]]:
    del start, columns
    buffered = io.BufferedReader(stream, READ_BYTES)
    check_start(buffered.peek()[:4096], file.name)
    lines = lines_of(buffered, MAX_LINE_BYTES)
    first = 0
    while taken := take_lines(lines, CHUNK_ROWS):
        yield first, JsonRows([_row_of(file, line.number, line.raw) for line in taken])
        first += len(taken)


def _row_of(file: TableFile, number: int, raw: bytes) -> dict[str, Any]:
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"{file.name} row {number:,} is no JSON: {error.msg} at column {error.colno}; correct the row,"
            " or remove it"
        ) from None
    if not isinstance(row, dict):
        raise InvalidRequest(
            f'{file.name} row {number:,} is no JSON object; write {{"text": "..."}} for example'
        )
    return row


_READERS: dict[str, Callable[[TableFile, Any, int, Sequence[str]], Iterator[tuple[int, Rows]]]] = {
    "parquet": _read_parquet,
    "arrow": _read_arrow,
    "csv": _read_csv,
    "tsv": _read_csv,
    "jsonl": _read_jsonl,
}

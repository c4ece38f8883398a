"""Keep finished answers on disk, part by part; a whole part has them in the order of the rows.

A part is a fixed range of rows. `NNNNNNN.jsonl` is its journal: one line for each finished row, in the
order in which rows finish. Once all its rows have their line, the part becomes `NNNNNNN.parquet`.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.producer.batches.submit_run import WrittenRows
from gristmill.shared.answers import CUT
from gristmill.shared.errors import InvalidRequest

PART_ROWS = 8_192
"""Rows of a part: few enough to make one without a pause, enough that millions of rows need few files."""

STEP_ROWS = 512
"""Rows of a part that are in memory at a time."""

MAX_OPEN = 64
"""Journals that are open at a time; a slow row keeps the journal of its part open for long."""


class AnswerParts:
    """The parts of one run.

    Args:
        folder: Folder that has them; it exists.
        schema: Columns of an answer. The last ones are the finish reason and the error.
        num_rows: Rows of the table.
        part_rows: Rows of a part; the same for all processes of a run.
    """

    def __init__(
        self, folder: Path, schema: Any, num_rows: int, *, part_rows: int = PART_ROWS
    ) -> None:
        self._folder = folder
        self._schema = schema
        self._num_rows = num_rows
        self._part_rows = part_rows
        self._num_left = [self._size(part) for part in range(self.num_parts)]
        self._finished = bytearray(num_rows + 1)
        self._open: OrderedDict[int, Any] = OrderedDict()
        self._unsynced: set[int] = set()

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return -(-self._num_rows // self._part_rows)

    def restore(self) -> WrittenRows:
        """Return what earlier processes have finished, and make the parts that they left whole.

        Raises:
            InvalidRequest: A file of a part is damaged.
        """
        written = WrittenRows(self._finished)
        for part in range(self.num_parts):
            self._path(part, "draft").unlink(missing_ok=True)
            if self._path(part, "parquet").exists():
                self._path(part, "jsonl").unlink(missing_ok=True)
                self._restore_whole(part, written)
            elif self._path(part, "jsonl").exists():
                self._restore_journal(part, written)
        return written

    def is_finished(self, row: int) -> bool:
        """Return whether a row has its values."""
        return bool(self._finished[row])

    def add(self, values: Mapping[int, Sequence[Any]]) -> None:
        """Write the values of some rows, in their order. A row that has its values keeps them."""
        by_part: dict[int, list[bytes]] = {}
        for row, its in values.items():
            if not self._finished[row]:
                self._finished[row] = 1
                line = orjson.dumps([row, *its], option=orjson.OPT_APPEND_NEWLINE)
                by_part.setdefault(self._part_of(row), []).append(line)
        for part, lines in by_part.items():
            self._journal(part).write(b"".join(lines))
            self._unsynced.add(part)
            self._num_left[part] -= len(lines)
            if not self._num_left[part]:
                self._seal(part)

    def sync(self) -> None:
        """Make the values so far survive a power cut; whole parts do already."""
        for part in self._unsynced & self._open.keys():
            os.fsync(self._open[part].fileno())
        self._unsynced.clear()

    def close(self) -> None:
        """Close the journals."""
        for journal in self._open.values():
            journal.close()
        self._open.clear()

    def batches(self) -> Iterator[Any]:
        """Yield the values of all rows as Arrow batches, in the order of the rows.

        Raises:
            InvalidRequest: A part is missing or damaged.
        """
        for part in range(self.num_parts):
            path = self._path(part, "parquet")
            try:
                with pa.OSFile(str(path)) as file:
                    yield from pq.ParquetFile(file, pre_buffer=False).iter_batches(
                        STEP_ROWS, use_threads=False
                    )
            except (pa.ArrowException, OSError) as error:
                raise _damaged(path, error) from None

    def _size(self, part: int) -> int:
        return min(self._part_rows, self._num_rows - part * self._part_rows)

    def _part_of(self, row: int) -> int:
        return (row - 1) // self._part_rows

    def _path(self, part: int, extension: str) -> Path:
        return self._folder / f"{part:07}.{extension}"

    def _journal(self, part: int) -> Any:
        if part in self._open:
            self._open.move_to_end(part)
            return self._open[part]
        if len(self._open) >= MAX_OPEN:
            _, oldest = self._open.popitem(last=False)
            os.fsync(oldest.fileno())
            oldest.close()
        journal = self._path(part, "jsonl").open("ab", buffering=0)
        self._open[part] = journal
        return journal

    def _restore_whole(self, part: int, written: WrittenRows) -> None:
        path = self._path(part, "parquet")
        try:
            ends = pq.read_table(path, columns=self._schema.names[-2:])
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error) from None
        first = part * self._part_rows + 1
        reasons, errors = (column.to_pylist() for column in ends.columns)
        for row, values in enumerate(zip(reasons, errors, strict=True), first):
            self._note(written, row, *values)
        self._num_left[part] = 0

    def _restore_journal(self, part: int, written: WrittenRows) -> None:
        path, end = self._path(part, "jsonl"), 0
        with path.open("r+b") as journal:
            for line in journal:
                if not line.endswith(b"\n"):
                    break
                end += len(line)
                row, *values = self._read(path, line)
                if self._part_of(row) != part:
                    raise _damaged(path, f"it has row {row:,}, which belongs elsewhere")
                self._num_left[part] -= not self._finished[row]
                self._note(written, row, values[-2], values[-1])
            journal.truncate(end)
        if not self._num_left[part]:
            self._seal(part)

    def _note(self, written: WrittenRows, row: int, reason: str | None, error: str | None) -> None:
        if written.finished[row]:
            return
        written.finished[row] = 1
        written.num_finished += 1
        written.num_failed += error is not None
        written.num_cut += reason == CUT
        if error is not None and not written.example:
            written.example = f"row {row:,}: {error}"

    def _read(self, path: Path, line: bytes) -> list[Any]:
        try:
            values = orjson.loads(line)
            if len(values) == len(self._schema) + 1 and 0 < values[0] <= self._num_rows:
                return list(values)
            reason: object = "it has other columns than the run"
        except (ValueError, TypeError) as error:
            reason = error
        raise _damaged(path, reason)

    def _seal(self, part: int) -> None:
        """Make a part of which all rows have their values."""
        if (journal := self._open.pop(part, None)) is not None:
            journal.close()
        path, draft = self._path(part, "jsonl"), self._path(part, "draft")
        with path.open("rb") as lines, draft.open("wb") as file:
            with pq.ParquetWriter(file, self._schema, compression="zstd") as writer:
                for batch in self._in_order(path, lines):
                    writer.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._path(part, "parquet"))
        path.unlink()

    def _in_order(self, path: Path, lines: Any) -> Iterator[Any]:
        """Yield a journal's values in the order of the rows, a few in memory at a time."""
        places: dict[int, int] = {}
        start = 0
        for line in lines:
            places.setdefault(int(line[1 : line.index(b",")]), start)
            start += len(line)
        rows = sorted(places)
        for low in range(0, len(rows), STEP_ROWS):
            some = []
            for row in rows[low : low + STEP_ROWS]:
                lines.seek(places[row])
                some.append(self._read(path, lines.readline())[1:])
            columns = zip(*some, strict=True)
            arrays = [
                pa.array(values, field.type)
                for values, field in zip(columns, self._schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _damaged(path: Path, reason: object) -> InvalidRequest:
    return InvalidRequest(
        f"{path} cannot be read ({reason}); delete it, and the same command runs its rows again"
    )

"""Find the input lines of a batch that have a row in its error file."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson

from gristmill.producer.batches.objects import FileRecord
from gristmill.producer.batches.rows import is_hopeless, line_of_row
from gristmill.producer.batches.storage import Storage

PIECE_BYTES = 2**20


@dataclass(slots=True)
class FailedLines:
    """The lines of a batch that failed: one bit for each line of the input.

    Attributes:
        bits: The lines to run again.
        num_lines: Number of these lines.
        num_hopeless: Lines that were left out, because they can never succeed as they are.
    """

    bits: bytearray = field(default_factory=bytearray)
    num_lines: int = 0
    num_hopeless: int = 0

    def add(self, number: int) -> None:
        """Add a line that has one row in the error file."""
        self.bits.extend(bytes(max(0, number // 8 + 1 - len(self.bits))))
        self.bits[number // 8] |= 1 << number % 8
        self.num_lines += 1

    def __contains__(self, number: int) -> bool:
        return number // 8 < len(self.bits) and bool(self.bits[number // 8] >> number % 8 & 1)


def find_failed(storage: Storage, errors: FileRecord, batch: str, *, is_all: bool) -> FailedLines:
    """Return the lines that have a row in an error file; blocks on the storage.

    Args:
        storage: Storage of the file.
        errors: Error file of the batch.
        batch: Id of the batch.
        is_all: True to include lines that can never succeed.
    """
    found = FailedLines()
    with storage.open(errors.path) as rows:
        for row in rows:
            if not is_all and is_hopeless(orjson.loads(row)):
                found.num_hopeless += 1
            else:
                found.add(line_of_row(row, batch))
    return found


def read_failed(storage: Storage, source: FileRecord, failed: FailedLines) -> Iterator[bytes]:
    """Yield failed lines in the order of the input; blocks on the storage.

    A long line comes in several pieces.

    Args:
        storage: Storage of the file.
        source: Input of the batch.
        failed: The lines.
    """
    with storage.open(source.path) as stream:
        number, is_begin, end = 1, True, b"\n"
        while piece := stream.readline(PIECE_BYTES):
            if number in failed:
                yield with_name(piece, number) if is_begin and piece.endswith(b"\n") else piece
                end = piece[-1:]
            is_begin = piece.endswith(b"\n")
            number += is_begin
        if end != b"\n":
            yield b"\n"


def with_name(line: bytes, number: int) -> bytes:
    """Return a line with the custom_id of its row: its own, or its number if it has none."""
    try:
        fields = orjson.loads(line)
    except ValueError:
        return line
    if not isinstance(fields, dict) or fields.get("custom_id") or fields.get("id"):
        return line
    name = "custom_id" if "body" in fields else "id"
    return orjson.dumps(fields | {name: str(number)}, option=orjson.OPT_APPEND_NEWLINE)

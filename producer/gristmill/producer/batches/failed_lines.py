"""Find the input lines of a batch that have a row in its error file."""

from collections.abc import Iterator

import orjson

from gristmill.producer.batches.objects import FileRecord
from gristmill.producer.batches.rows import line_of_row
from gristmill.producer.batches.storage import Storage

PIECE_BYTES = 2**20


def failed_lines(
    storage: Storage, source: FileRecord, errors: FileRecord, batch: str
) -> Iterator[bytes]:
    """Yield the failed lines in the order of the input; blocks on the storage.

    A long line comes in several pieces. Memory: one bit for each line of the input.

    Args:
        storage: Storage of both files.
        source: Input of the batch.
        errors: Error file of the batch.
        batch: Id of the batch.
    """
    failed = bytearray()
    with storage.open(errors.path) as rows:
        for row in rows:
            number = line_of_row(row, batch)
            failed.extend(bytes(max(0, number // 8 + 1 - len(failed))))
            failed[number // 8] |= 1 << number % 8
    with storage.open(source.path) as stream:
        number, is_begin, end = 1, True, b"\n"
        while piece := stream.readline(PIECE_BYTES):
            if number // 8 < len(failed) and failed[number // 8] >> number % 8 & 1:
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

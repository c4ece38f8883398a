"""The lines of a batch that have a row in its error file."""

from collections.abc import Iterator

from gristmill.producer.batches.objects import FileRecord
from gristmill.producer.batches.rows import line_of_row
from gristmill.producer.batches.storage import Storage


def failed_lines(
    storage: Storage, source: FileRecord, errors: FileRecord, batch: str
) -> Iterator[bytes]:
    """Yield these lines of the input, in the order of the input; blocks on the storage.

    Memory: one bit for each line of the input.
    """
    failed = bytearray()
    with storage.open(errors.path) as rows:
        for row in rows:
            number = line_of_row(row, batch)
            failed.extend(bytes(max(0, number // 8 + 1 - len(failed))))
            failed[number // 8] |= 1 << number % 8
    with storage.open(source.path) as lines:
        for number, line in enumerate(lines, 1):
            if number // 8 < len(failed) and failed[number // 8] >> number % 8 & 1:
                yield line if line.endswith(b"\n") else line + b"\n"

"""Recognise files that are not JSONL by their first bytes, and say how to convert them.

`gristmill submit`, `gristmill batch create`, stewards and bench call this before they read the lines of
a file: every line of a Parquet file would be an error about JSON.
"""

import re
from typing import BinaryIO

import orjson

from gristmill.shared.errors import InvalidRequest

NOT_JSONL = "invalid_json_line"
"""OpenAI's code for a line that is not a JSON object, as in `request_json.py`."""

START_BYTES = 4_096
"""Bytes of a file that are looked at."""

_PANDAS = (
    'convert it, with pandas: pd.{read}("FILE").rename(columns={{"COLUMN": "prompt"}})[["prompt"]]'
    '.to_json("in.jsonl", orient="records", lines=True)'
)
_CSV = "a CSV file; " + _PANDAS.format(read="read_csv")

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"PAR1", "a Parquet file; " + _PANDAS.format(read="read_parquet")),
    (b"ARROW1", "an Arrow file; " + _PANDAS.format(read="read_feather")),
    (b"\x1f\x8b", "compressed with gzip; decompress it first: gunzip FILE"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; decompress it first: unzstd FILE"),
    (b"BZh", "compressed with bzip2; decompress it first: bunzip2 FILE"),
    (b"\xfd7zXZ\x00", "compressed with xz; decompress it first: unxz FILE"),
    (b"\x04\x22\x4d\x18", "compressed with lz4; decompress it first: unlz4 FILE"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first: 7z x FILE"),
    (b"version https://git-lfs", "a pointer of Git LFS; fetch the file itself: git lfs pull"),
    (b"%PDF", 'a PDF; write its texts as JSON lines: one {"prompt": ...} a line'),
    (b"<", "HTML or XML, perhaps the page of an error; check where it came from"),
    (b"PK\x03\x04", "a ZIP or Excel file; unpack it, or save the sheet as CSV and convert that"),
    (b"\xff\xfe\x00\x00", "UTF-32; save it as UTF-8"),
    (b"\x00\x00\xfe\xff", "UTF-32; save it as UTF-8"),
    (b"\xff\xfe", "UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "UTF-16; save it as UTF-8"),
)
"""First bytes of a format -> its name, and how to make JSONL of it."""

_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Bytes that no text has."""

_ZEROS = {
    b"\0\1\0\1\0\1\0\1": "UTF-16",
    b"\1\0\1\0\1\0\1\0": "UTF-16",
    b"\0\0\0\1\0\0\0\1": "UTF-32",
    b"\1\0\0\0\1\0\0\0": "UTF-32",
}
"""Which of the first eight bytes are not zero -> encoding."""


def check_stream(stream: BinaryIO, name: str) -> None:
    """Check that an open file may be JSONL; the stream is at the first byte before and afterwards.

    Args:
        stream: The file, opened in binary mode.
        name: Name of the file in the message.

    Raises:
        InvalidRequest: It has another format; the message says which, and how to convert it.
    """
    start = stream.read(START_BYTES)
    stream.seek(0)
    check_start(start, name)


def check_start(start: bytes, name: str) -> None:
    """Check that a file may be JSONL.

    Args:
        start: First bytes of the file; `START_BYTES` are enough.
        name: Name of the file in the message.

    Raises:
        InvalidRequest: As in `check_stream`.
    """
    if found := _foreign_format(start[:START_BYTES]):
        raise InvalidRequest(f"{name} is {found}", NOT_JSONL)


def _foreign_format(start: bytes) -> str | None:
    for signature, found in _SIGNATURES:
        if start.startswith(signature):
            return found
    if (encoding := _wide_encoding(start)) is not None:
        return f"{encoding}; save it as UTF-8"
    lines = [line.strip() for line in start.removeprefix(b"\xef\xbb\xbf").splitlines()]
    first, *others = [line for line in lines if line] or [b""]
    if first == b"[" or first.startswith((b"[{", b"[ {")):
        return "one JSON array; write each element on a line of its own: jq -c '.[]' FILE"
    if first == b"{":
        return "a JSON object on several lines; write it on one line: jq -c . FILE"
    if not any(line.startswith(b"{") for line in lines) and _CONTROL.search(start):
        return "a binary file; write one JSON object a line, in UTF-8"
    return _CSV if _is_like_csv(first, others) else None


def _wide_encoding(start: bytes) -> str | None:
    """Return the encoding of a text without a byte order mark whose first four characters are ASCII, or None.

    The zero bytes between the ASCII bytes show the width, as in RFC 4627, section 3.
    """
    return _ZEROS.get(bytes(byte != 0 for byte in start[:8]))


def _is_like_csv(first: bytes, others: list[bytes]) -> bool:
    """Return whether the first line has columns; a file with JSON below it has one bad line instead."""
    if first.startswith((b"{", b"[")) or any(line.startswith(b"{") for line in others):
        return False
    has_columns = any(separator in first for separator in (b",", b"\t", b";"))
    return has_columns and not _is_json(first)


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True

import gzip
import io
import lzma

import pytest

from gristmill.shared.errors import InvalidRequest
from gristmill.shared.file_format import check_start, check_stream

REQUEST = b'{"prompt": "a, b; c"}\n'


@pytest.mark.parametrize(
    ("start", "found"),
    [
        (b"PAR1\x15", "a Parquet file"),
        (b"ARROW1\x00\x00", "an Arrow file"),
        (gzip.compress(REQUEST, mtime=0), "compressed with gzip"),
        (lzma.compress(REQUEST), "compressed with xz"),
        (b"PK\x03\x04", "a ZIP or Excel file"),
        (b"\x04\x22\x4d\x18dd", "compressed with lz4"),
        (b"7z\xbc\xaf\x27\x1c\x00\x04", "a 7z archive"),
        (b"%PDF-1.7\n%\xe2", "a PDF"),
        (b"<!DOCTYPE html>\n<html>", "HTML or XML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (b"SQLite format 3\x00", "a binary file"),
        (b"\x93NUMPY\x01\x00, ;\n", "a binary file"),
        (b"id,text\n1,hello\n", "a CSV file"),
        (b'\xef\xbb\xbf"id";"text"\r\n"1";"{}"\r\n', "a CSV file"),
        (b"id\ttext\n1\thello\n", "a CSV file"),
        (b"\n[\n  {\n", "one JSON array"),
        (b'[{"prompt": "a"}, {"prompt": "b"}]\n', "one JSON array"),
        (b'{\n  "prompt": "a"\n}\n', "a JSON object on several lines"),
    ],
)
def test_another_format_is_named_with_its_remedy(start: bytes, found: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^in is {found}.*; ") as caught:
        check_start(start, "in")
    assert caught.value.code == "invalid_json_line"


@pytest.mark.parametrize("text", [REQUEST.decode(), "id,text\n1,hello\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["bare", "with-mark"])
@pytest.mark.parametrize("order", ["le", "be"])
@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-32"])
def test_a_wide_encoding_is_named_with_and_without_its_mark(
    encoding: str, order: str, mark: str, text: str
) -> None:
    start = f"{mark}{text}".encode(f"{encoding}-{order}")
    with pytest.raises(InvalidRequest, match=f"^in is {encoding}; save it as UTF-8$"):
        check_start(start, "in")


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\n",
        REQUEST,
        b"\xef\xbb\xbf" + REQUEST,
        b"null\n",
        b'"a, b"\n',
        b"[1,2]\n" + REQUEST,
        b"\x00\n" + REQUEST,
        b"broken, line\n" + REQUEST,
        b'{"prompt": "a, b"\n',
    ],
)
def test_jsonl_passes_also_with_a_bad_first_line(start: bytes) -> None:
    stream = io.BytesIO(start)
    check_stream(stream, "in")
    assert stream.read() == start

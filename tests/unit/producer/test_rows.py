from io import BytesIO
from typing import Any

import orjson
import pytest

from gristmill.producer.batches.rows import (
    BadLine,
    CustomIds,
    Line,
    LineReader,
    bad_line_row,
    is_hopeless,
    lines_of,
    result_row,
    unanswered_row,
)
from gristmill.shared import json_parts
from gristmill.shared.request import Request
from gristmill.shared.results import Result


def numbered(data: bytes, max_line_bytes: int = 100) -> list[tuple[int, bytes]]:
    return [(line.number, line.raw) for line in lines_of(BytesIO(data), max_line_bytes)]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a", [(1, b"a")]),
        (b"a\nb\n", [(1, b"a"), (2, b"b")]),
        (b"\xef\xbb\xbfa\r\nb\r\n\r\n\n  \n", [(1, b"a"), (2, b"b")]),
        (b"\na\n\n\nb\n", [(1, b""), (2, b"a"), (3, b""), (4, b""), (5, b"b")]),
    ],
)
def test_lines_are_numbered_and_only_blank_last_ones_are_dropped(
    data: bytes, lines: list[tuple[int, bytes]]
) -> None:
    assert numbered(data) == lines


@pytest.mark.parametrize("num_bytes", range(1, 30))
def test_a_line_is_cut_only_beyond_the_limit_and_the_next_is_whole(num_bytes: int) -> None:
    (_, first), second = numbered(b"x" * num_bytes + b"\nnext\n", max_line_bytes=10)
    assert second == (2, b"next")
    assert len(first) == num_bytes if num_bytes <= 10 else 10 < len(first) <= 16


def result(**fields: object) -> Result:
    base: dict[str, object] = {
        "id": "run-1", "status": "succeeded", "endpoint": "/v1/completions", "attempt": 1,
        "enqueued_ms": 1, "finished_ms": 2, "status_code": 200, "body": {"choices": []},
        "error": None, "metadata": {"custom_id": "a"}, "worker": "w",
    }  # fmt: skip
    return Result(**(base | fields))  # type: ignore[arg-type]


def test_a_row_embeds_the_body_or_says_why_there_is_none() -> None:
    assert orjson.loads(result_row(result())) == {
        "id": "batch_req_run-1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "run-1", "body": {"choices": []}},
        "error": None,
    }
    error = {"code": "expired", "message": "too late"}
    expired = result(status="expired", status_code=None, body=None, error=error)
    assert orjson.loads(result_row(expired)) == {
        "id": "batch_req_run-1",
        "custom_id": "a",
        "response": None,
        "error": error,
    }


def test_a_row_says_what_made_its_answer_beside_the_response() -> None:
    made_by = {"model": "m", "weights": "sha256:3f5a0c9b2d71", "seed": 7}
    row = orjson.loads(result_row(result(made_by=made_by, metadata={"custom_id": "a", "n": 1})))
    assert list(row) == ["id", "custom_id", "response", "error", "made_by", "metadata"]
    assert row["made_by"] == made_by
    assert "made_by" not in orjson.loads(result_row(result()))


@pytest.mark.parametrize("mark", ["\u0085", "\u2028", "\u2029"])
def test_no_reader_of_lines_splits_a_row(mark: str) -> None:
    text = f"one{mark}two"
    for row in (
        result_row(result(body={"text": text}, metadata={"custom_id": text, "note": text})),
        unanswered_row("run-1", text, "failed", text),
        bad_line_row("run", BadLine(1, text, text)),
    ):
        assert len(row.decode().splitlines()) == 1
        assert orjson.loads(row)["custom_id"] == text
    row = orjson.loads(result_row(result(body={"text": text})))
    assert row["response"]["body"] == {"text": text}


def test_a_row_has_the_metadata_of_its_line() -> None:
    metadata = {"custom_id": "a", "row": 17, "gold": "one"}
    rest = {"row": 17, "gold": "one"}
    assert orjson.loads(result_row(result(metadata=metadata)))["metadata"] == rest
    raw = b'{"custom_id": "a", "body": {"n": 1}, "metadata": {"row": 17, "gold": "one"}}'
    bad = LineReader("run", max_request_bytes=1024).read(Line(1, raw, 0, 0))
    assert isinstance(bad, BadLine)
    assert orjson.loads(bad_line_row("run", bad))["metadata"] == rest


def test_metadata_too_deep_for_a_row_is_left_out() -> None:
    deep = orjson.loads(b'{"a":' * 254 + b"1" + b"}" * 254)
    row = orjson.loads(result_row(result(metadata={"custom_id": "a", "deep": deep})))
    assert (row["custom_id"], row["response"]["status_code"], row.keys() >= {"metadata"}) == (
        "a",
        200,
        False,
    )


@pytest.mark.parametrize(
    ("raw", "custom_id"),
    [
        (b'{"custom_id": 10, "body": {"prompt": "x"}}', "10"),
        (b'{"custom_id": 1.5, "body": {"prompt": "x"}}', "1.5"),
        (b'{"id": "m1", "body": {"prompt": "x"}, "priority": "urgent"}', "m1"),
        (b'{"custom_id": null, "id": 7, "prompt": "x"}', "7"),
        (b'{"custom_id": true, "body": {"prompt": "x"}}', None),
        (b'{"custom_id": ["a"], "body": {"prompt": "x"}}', None),
        (b'{"prompt": "x", "stream": true}', None),
        (b"{broken", None),
        (b"[1]", None),
    ],
)
def test_a_bad_line_never_takes_the_custom_id_of_another_line(
    raw: bytes, custom_id: str | None
) -> None:
    bad = LineReader("run", max_request_bytes=1024).read(Line(3, raw, 0, 0))
    assert isinstance(bad, BadLine)
    row = orjson.loads(bad_line_row("run", bad))
    assert row["custom_id"] == custom_id
    assert row["response"]["body"]["error"]["message"].startswith("line 3: ")


def test_a_row_that_cannot_be_written_is_an_error_of_that_line_alone() -> None:
    deep = orjson.loads(b'{"a":' * 300 + b"1" + b"}" * 300)
    row = orjson.loads(result_row(result(body=deep)))
    assert (row["id"], row["custom_id"], row["response"]) == ("batch_req_run-1", "a", None)
    assert row["error"]["code"] == "unreadable"


def test_a_line_of_too_many_parts_is_never_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a refused line was parsed a second time for its custom_id."""
    monkeypatch.setattr(json_parts, "MAX_JSON_PARTS", 10)
    raw = b'{"custom_id":"a","body":{"prompt":[1,2,3,4,5,6,7,8]}}'
    bad = LineReader("run", max_request_bytes=1024).read(Line(3, raw, 0, 0))
    assert isinstance(bad, BadLine)
    assert (bad.custom_id, bad.reason[:12]) == (None, "its JSON has")


def test_a_bad_line_says_why_without_the_id_of_its_request() -> None:
    reader = LineReader("run", max_request_bytes=1024)
    bad = reader.read(
        Line(7, b'{"custom_id": "a", "body": {"prompt": "x"}, "max_attempts": 0}', 0, 0)
    )
    assert bad == BadLine(7, "max_attempts is 0; use 1 to 100", "a", "invalid_request", {})
    assert str(bad) == "line 7: max_attempts is 0; use 1 to 100"


def test_a_line_above_the_highest_lane_is_bad() -> None:
    reader = LineReader("run", max_request_bytes=1024, max_priority="normal")
    line = b'{"custom_id": "a", "body": {"prompt": "x"}, "priority": "%s"}'
    bad = reader.read(Line(1, line % b"high", 0, 0))
    assert isinstance(bad, BadLine)
    assert (bad.code, bad.custom_id) == ("priority_not_allowed", "a")
    for allowed in (b"normal", b"low"):
        assert isinstance(reader.read(Line(1, line % allowed, 0, 0)), Request)


def test_a_custom_id_leads_to_the_line_that_had_it_first() -> None:
    custom_ids = CustomIds()
    assert [custom_ids.add(name, 2 * n) for n, name in enumerate("abacb", 1)] == [
        None,
        None,
        2,
        None,
        4,
    ]


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "invalid_json_line", True), (400, None, True), (400, 400, True), (413, None, True), (422, ["odd"], True),
        (400, "model_not_found", False), (400, "duplicate_custom_id", False),
        (401, None, False), (404, 404, False), (408, None, False), (429, None, False), (500, None, False),
    ],
)  # fmt: skip
def test_only_what_is_refused_for_what_it_says_is_hopeless(
    status: int, code: Any, expected: bool
) -> None:
    body = {"error": {"message": "m", "code": code}}
    row = {"response": {"status_code": status, "body": body}, "error": None}
    assert is_hopeless(row) is expected
    assert not is_hopeless({"response": None, "error": {"code": "engine_killed"}})

from typing import Any

import pytest

from gristmill.shared.results import Result


def with_body(body: Any, status_code: int = 200) -> Result:
    status = "succeeded" if status_code == 200 else "failed"
    return Result("a", status, "", 1, 0, 0, status_code, body, None, None, "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 4)),
        ({"input_tokens": 3, "output_tokens": 4}, (3, 4)),
        ({"prompt_tokens": 3}, (3, 0)),
        ({"prompt_tokens": 1.5, "completion_tokens": "4"}, (0, 0)),
        ({"prompt_tokens": True, "completion_tokens": 10**20}, (0, 0)),
        ({"prompt_tokens": -1, "completion_tokens": None}, (0, 0)),
        ([1], (0, 0)),
        (None, (0, 0)),
    ],
)
def test_tokens_are_what_can_be_tokens(usage: Any, tokens: tuple[int, int]) -> None:
    assert with_body({"usage": usage}).tokens == tokens


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"choices": [{"message": {"role": "assistant", "content": "Hi"}}]}, "Hi"),
        ({"choices": [{"text": "one"}, {"text": "two"}]}, "one"),
        ({"choices": [{"text": ""}]}, ""),
        ({"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}, None),
        ({"choices": []}, None),
        ({"output": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm"}]},
                     {"content": [{"type": "output_text", "text": "a"}, {"type": "output_text", "text": "b"}]}]}, "ab"),
        ({"type": "message", "content": [{"type": "text", "text": "a"}, {"type": "tool_use"}]}, "a"),
        ({"content": [{"type": "tool_use", "name": "f"}]}, None),
        ({"object": "list", "data": [{"embedding": [0.5]}]}, None),
    ],
)  # fmt: skip
def test_text_is_that_of_the_first_answer(body: Any, text: str | None) -> None:
    assert with_body(body).text == text
    assert with_body(body, 400).text is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"choices": [{"text": "one", "finish_reason": "length"}, {"finish_reason": "stop"}]}, "length"),
        ({"choices": [{"text": "one", "finish_reason": 5}]}, None),
        ({"choices": []}, None), ({"data": []}, None), ([1], None), (None, None),
    ],
)  # fmt: skip
def test_finish_reason_is_that_of_the_first_choice(body: Any, reason: str | None) -> None:
    assert with_body(body).finish_reason == reason
    assert with_body(body, 400).finish_reason is None


@pytest.mark.parametrize("body", [[1], "text", 5, None, True, {}])
def test_a_body_may_be_any_json(body: Any) -> None:
    assert with_body(body).tokens == (0, 0)
    assert with_body(body).text is None
    assert with_body(body, 400).failure == f"HTTP 400: {body}"


@pytest.mark.parametrize("error", [None, {"code": "odd", "message": "a\n  b\r\n\tc\u2028d"}])
def test_a_failure_is_one_line(error: Any) -> None:
    body = {"error": {"message": "a\n  b\r\n\tc\u2028d"}}
    failed = Result("a", "failed", "", 1, 0, 0, 400, body, error, None, "")
    assert failed.failure == ("odd" if error else "HTTP 400") + ": a b c d"


@pytest.mark.parametrize("value", [b"NaN", b"-Infinity", b"1e999", b'"\xff"', b'"\t"'])
def test_metadata_that_is_no_strict_json_leaves_a_result_readable(value: bytes) -> None:
    record = (
        b'{"id":"a","status":"succeeded","endpoint":"","enqueued_ms":1,"finished_ms":2,"metadata":{"x":%s},'
        b'"attempt":1,"response":{"status_code":200,"body":{"choices":[{"text":"hi"}]}},"error":null}'
    ) % value
    result = Result.read("a", record)
    assert result.text == "hi"
    assert result.metadata is not None

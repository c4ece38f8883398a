"""Test that the chunks of a stream become the whole answer, and which events reach the caller."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gristmill.worker.engine.streamed_answer import StreamedAnswer, with_stream

CHAT = "/v1/chat/completions"
BODY = b'{"stream":true}'


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def choice(reason: str | None = None, index: int = 0, **delta: Any) -> bytes:
    part = {"index": index, "delta": delta, "finish_reason": reason}
    return event(id="c", object="chat.completion.chunk", choices=[part])


USAGE = event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2})
DONE = b"data: [DONE]\n\n"


def fed(
    *data: bytes, body: bytes = BODY, endpoint: str = CHAT
) -> tuple[StreamedAnswer, list[bytes]]:
    events: list[bytes] = []
    answer = StreamedAnswer(endpoint, body, events.append)
    for each in data:
        answer.feed(each)
    return answer, events


def test_parts_are_joined_by_choice_and_by_tool_call() -> None:
    call = {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": "{"}}
    answer, events = fed(
        choice(role="assistant", content=""),
        choice(content="a", reasoning="why"),
        choice(index=1, content="b"),
        choice(content="c", reasoning=" not"),
        choice(tool_calls=[call]),
        choice(tool_calls=[{"index": 0, "function": {"arguments": "}"}}]),
        choice("tool_calls"),
        choice("stop", index=1),
        USAGE,
        DONE,
    )
    response = answer.response()
    body = json.loads(response.body)
    first, second = body["choices"]
    called = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert first["message"] == {
        "role": "assistant", "content": "ac", "reasoning": "why not", "tool_calls": [called],
    }  # fmt: skip
    assert (second["message"]["content"], second["finish_reason"]) == ("b", "stop")
    assert body["object"] == "chat.completion"
    assert (response.prompt_tokens, response.output_tokens) == (3, 2)
    assert response.finish_reason == "tool_calls"
    assert len(events) == 8  # the usage was not asked for


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_are_whole_however_the_bytes_come(size: int, newline: bytes) -> None:
    data = b": comment\n\n" + choice(content="a") + choice("stop", content="b") + USAGE + DONE
    data = data.replace(b"\n", newline)
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    answer, events = fed(*pieces)
    assert events == [choice(content="a"), choice("stop", content="b")]
    assert json.loads(answer.response().body)["choices"][0]["message"]["content"] == "ab"


@pytest.mark.parametrize(
    "written",
    [
        b"event: message\n%s\n\n",
        b"id: 7\n%s\n\n",
        b": ping\n%s\n\n",
        b"%s\nid: 9\nretry: 5\n\n",
        b"%s\r\r",
        b"data:\n%s\ndata:\n\n\n",
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_each_way_to_write_an_event_is_passed_on_as_one_data_line(
    written: bytes, size: int
) -> None:
    chunks = [choice(content="a"), choice("stop", content="b")]
    data = b"\xef\xbb\xbf" + b"".join(written % each.strip() for each in chunks)
    answer, events = fed(*[data[i : i + size] for i in range(0, len(data), size)])
    assert events == chunks
    assert json.loads(answer.response().body)["choices"][0]["message"]["content"] == "ab"


def test_json_on_several_lines_is_passed_on_as_one() -> None:
    data = choice("stop", content="a").replace(b', "choices"', b',\ndata: "choices"')
    assert data.count(b"data:") == 2
    _, events = fed(data)
    assert events == [choice("stop", content="a")]


@pytest.mark.parametrize(
    "fields",
    [
        7,
        {"choices": [7]},
        {"choices": {"a": 1}},
        {"choices": [{"index": [1], "delta": {}}]},
        {"x": json.loads("[" * 300 + "]" * 300)},
        {"choices": [{"index": 1, "text": "a"}, {"index": 1, "delta": {}}]},
        {"choices": [{"index": 1024, "delta": {}}]},
        {"choices": [{"index": -1, "delta": {}}]},
        {"choices": [{"delta": 7}]},
        {"choices": [{"delta": [1]}]},
        {"choices": [{"delta": {"tool_calls": [7]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 10**6}]}}]},
    ],
)
def test_event_that_is_no_chunk_is_an_error_and_reaches_nobody(fields: Any) -> None:
    data = b"data: " + json.dumps(fields).encode() + b"\n\n"
    answer, events = fed(choice(content="a"), data, choice("stop", content="b"))
    assert events == [choice(content="a")]
    response = answer.response()
    assert response.status == 500
    assert json.loads(response.body)["error"]["type"] == "InvalidStreamError"


@pytest.mark.parametrize(
    "part",
    [
        lambda n: event(choices=[], **{f"name {n}": "x" * 1000}),
        lambda n: event(choices=[], **{f"name {n}": {"a": ["x" * 1000]}}),
        lambda n: choice(content="x" * 1000),
        lambda n: event(choices=[{"delta": {f"name {n}": {"a": "x" * 1000}}}]),
        lambda n: choice(content=[{"token": "x" * 1000}]),
        lambda n: choice(tool_calls=[{"index": n, "id": "x" * 1000}]),
        lambda n: choice(tool_calls=[{"function": {f"name {n}": {"a": "x" * 1000}}}]),
    ],
    ids=["top texts", "top objects", "text", "delta", "list", "calls", "function"],
)
def test_number_of_bytes_counts_all_that_is_kept(part: Callable[[int], bytes]) -> None:
    answer, _ = fed(*map(part, range(100)))
    assert 100_000 <= answer.num_bytes < 120_000


def test_number_of_bytes_leaves_out_what_each_chunk_repeats() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    part = {"index": 0, "delta": {"role": "assistant", "content": "a"}}
    answer, _ = fed(
        *[
            event(id="c", model="m" * 100, choices=[part], usage=usage | {"n": n})
            for n in range(1000)
        ]
    )
    assert answer.num_bytes < 2000


def test_end_of_an_event_is_looked_for_in_new_bytes_alone() -> None:
    answer, _ = fed()
    for _ in range(40_000):  # looked for in all bytes, it takes longer than a test may
        answer.feed(b"x" * 100)
    assert answer.num_bytes == 4_000_000


@pytest.mark.parametrize("code", [400, 500, None])
def test_error_is_the_answer_and_no_event(code: int | None) -> None:
    error = {"message": "no", "type": "T", "param": None, "code": code}
    answer, events = fed(choice(content="a"), event(error=error), DONE)
    response = answer.response()
    assert (response.status, json.loads(response.body)) == (code or 500, {"error": error})
    assert events == [choice(content="a")]


def test_answer_that_the_engine_aborted_does_not_end_for_the_caller() -> None:
    answer, events = fed(choice(content="a"), choice("abort"), USAGE, DONE)
    assert events == [choice(content="a")]
    assert answer.response().finish_reason == "abort"


@pytest.mark.parametrize(
    "data", [b"", choice(content="a"), choice(content="a") + DONE, b"data: {x\n\n"]
)
def test_stream_that_ends_before_its_answer_is_an_error_of_the_server(data: bytes) -> None:
    answer, _ = fed(data)
    assert answer.response().status == 500


def test_whole_answer_of_the_responses_api_is_in_its_last_event() -> None:
    whole = {"model": "m", "output": [], "usage": {"input_tokens": 1, "output_tokens": 2}}
    last = b"event: response.completed\n" + event(type="response.completed", response=whole)
    answer, events = fed(last, endpoint="/v1/responses")
    assert events == [last]
    assert json.loads(answer.response().body) == whole
    assert answer.response().output_tokens == 2


def test_body_asks_for_the_usage_and_for_nothing_else_that_the_caller_did_not() -> None:
    body = with_stream(b'{"n":1}', {"continuous_usage_stats": True}, CHAT)
    answer, _ = fed(body=body)
    assert json.loads(answer.body) == {
        "n": 1, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert json.loads(with_stream(b"{}", {"include_usage": True}, "/v1/responses")) == {
        "stream": True
    }
    assert with_stream(b"[]", {}, CHAT) == b"[]"

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.shared import json_parts
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.json_encoding import MAX_METADATA_BYTES
from gristmill.shared.request import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    Request,
)
from gristmill.shared.request_json import request_from_json

LIMIT = 2**20


def read(element: object, **options: object) -> Request:
    raw = element if isinstance(element, bytes) else orjson.dumps(element)
    return request_from_json(raw, **({"max_request_bytes": LIMIT} | options))  # type: ignore[arg-type]


def refusal_of(element: object, **options: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read(element, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        ({"prompt": "a"}, COMPLETIONS),
        ({"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}, CHAT),
        ({"input": ["a"], "model": "m"}, EMBEDDINGS),
    ],
)
def test_a_plain_body_is_passed_whole_to_the_endpoint_that_its_field_tells(
    body: dict[str, object], endpoint: str
) -> None:
    request = read(body)
    assert (request.endpoint, orjson.loads(request.body)) == (endpoint, body)


def test_an_openai_batch_line_keeps_its_custom_id_as_metadata() -> None:
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"messages": []}}
    request = read(line, default_id="r-1")
    assert (request.id, request.endpoint, request.metadata) == ("r-1", CHAT, {"custom_id": "a"})


def test_an_envelope_sets_the_fields_of_a_request() -> None:
    request = read(
        {
            "id": "mine",
            "endpoint": "/tokenize",
            "body": {"prompt": "a"},
            "tenant": "t",
            "priority": "low",
            "deadline_s": 1.5,
            "delay_s": 2,
            "max_attempts": 9,
            "batch": "b",
            "metadata": {"row": 7},
        }
    )
    assert (request.id, request.endpoint, request.tenant) == ("mine", "/tokenize", "t")
    assert (request.priority, request.deadline_s, request.delay_s) == ("low", 1.5, 2)
    assert (request.max_attempts, request.batch, request.metadata) == (9, "b", {"row": 7})


def test_null_in_an_envelope_counts_as_left_out() -> None:
    request = read({"body": {"prompt": "a"}, "tenant": None, "metadata": None})
    assert (request.tenant, request.metadata, request.endpoint) == ("default", None, COMPLETIONS)


def test_defaults_give_way_to_what_the_element_sets() -> None:
    defaults = {"tenant": "t", "priority": "low"}
    request = read({"body": {"prompt": "a"}, "priority": "high"}, defaults=defaults)
    assert (request.tenant, request.priority) == ("t", "high")


def test_a_default_endpoint_makes_any_object_a_body() -> None:
    request = read({"text_1": "a", "text_2": "b"}, default_endpoint="/v1/score")
    assert (request.endpoint, orjson.loads(request.body)["text_2"]) == ("/v1/score", "b")


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (b"", "it is empty"),
        (b"  ", "it is empty"),
        (b"[1,2]", "it is an array"),
        (b"null", "it is null"),
        (b"true", "it is a boolean"),
        (b'"x"', "it is a string"),
        (b'{"prompt": "a"', "unexpected end of data at column 15"),
        (b'{"prompt": NaN}', "NaN at column 12; use null"),
        (b'{"t": -Infinity, "prompt": ""}', "Infinity at column"),
        (b'{"prompt": "\\ud800"}', "a lone surrogate"),
        (b'{"prompt": "ab\xff"}', "byte 0xff at position 15"),
        (b'{"prompt": "\x00"}', "control character"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"[" * 5_000, "it is not JSON"),
        ({"model": "m"}, "it has no prompt, messages or input"),
        (
            {"text": "a"},
            'it has no prompt, messages or input, so its endpoint is not known; write {"prompt"',
        ),
        ({"prompt": "a", "input": "b"}, "it has prompt and input"),
        (
            {"body": {"text": "a"}},
            "its body has no prompt, messages or input, so its endpoint is not known; add",
        ),
        (
            {"body": {"max_tokens": 4}, "url": CHAT},
            f"the body has no 'messages', which {CHAT} needs",
        ),
        (
            {"body": {}, "endpoint": "/v1/score"},
            "the body has no 'text_1' or 'data_1' or 'queries'",
        ),
        ({"body": None}, "'body' is null"),
        ({"body": "a"}, "'body' is a string; use an object"),
        ({"body": {"prompt": "a"}, "priorty": "high"}, "unknown field 'priorty' beside 'body'"),
        ({"body": {"prompt": "a"}, "max_attempts": True}, "'max_attempts' is a boolean"),
        ({"body": {"prompt": "a"}, "deadline_s": "1"}, "'deadline_s' is a string"),
        ({"body": {"prompt": "a"}, "priority": "urgent"}, "unknown priority 'urgent'"),
        ({"body": {"prompt": "a"}, "endpoint": "/x"}, "unknown endpoint '/x'"),
        ({"body": {"prompt": "a"}, "id": "a b"}, "id 'a b' is not allowed"),
        ({"body": {"prompt": "a"}, "method": "GET"}, "'method' is 'GET'"),
        ({"body": {"prompt": "a"}, "url": CHAT, "endpoint": "/x"}, "'url' is"),
        ({"body": {"prompt": "a"}, "custom_id": 5}, "'custom_id' is an integer"),
        ({"prompt": "a", "prefix_key": "k"}, "'prefix_key' stands beside 'body', not in it"),
        ({"prompt": "a", "stream": True}, "stream"),
    ],
)
def test_what_is_wrong_is_named(element: object, message: str) -> None:
    assert message in refusal_of(element)


def test_a_body_over_the_limit_is_refused_with_size_limit_and_setting() -> None:
    message = refusal_of({"prompt": "x" * 3_000}, max_request_bytes=2_048)
    assert "3,013 bytes" in message
    assert "the limit is 2,048; shorten it, or ask the operator to raise" in message
    assert "GRISTMILL_MAX_REQUEST_BYTES" in message


def test_an_element_far_over_the_limit_is_refused_before_it_is_parsed() -> None:
    assert "GRISTMILL_MAX_REQUEST_BYTES" in refusal_of(b"[" * 200_000, max_request_bytes=1_024)


def test_an_element_of_too_many_parts_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: 33 MB of `[],` became 1 GB of objects and killed the gateway."""
    monkeypatch.setattr(json_parts, "MAX_JSON_PARTS", 100)
    told = refusal_of(b'{"prompt":"a","zz":[' + b"[]," * 60 + b"no JSON from here on")
    assert "its JSON has 125 brackets, braces, commas and colons; the limit is 100" in told
    read({"prompt": [*range(90)]})


def test_metadata_over_its_limit_is_refused() -> None:
    """Regression: results repeated metadata of any length, which no limit counted."""
    element = {"body": {"prompt": "a"}, "metadata": {"a": "x" * MAX_METADATA_BYTES}}
    assert "its metadata has 65,544 bytes as JSON; the limit is 65,536" in refusal_of(element)
    assert read(element | {"metadata": {"a": "x" * 65_000}}).metadata is not None


def test_escapes_may_make_an_element_longer_than_its_body() -> None:
    body = {"prompt": "\u4e2d" * 600}
    raw = orjson.dumps(body).decode().replace("\u4e2d", "\\u4e2d").encode()
    assert orjson.loads(read(raw, max_request_bytes=2_048).body) == body


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["body", "prompt", "messages", "id", "metadata", "x"]), inner),
).map(orjson.dumps))  # fmt: skip
def test_any_bytes_are_a_request_or_refused(raw: bytes) -> None:
    try:
        request = read(raw)
    except InvalidRequest:
        return
    assert isinstance(orjson.loads(request.body), dict)

import math
import pickle
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.shared.body_fields import DEFAULT_MAX_TOKENS, NEEDED
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.json_encoding import encode_body
from gristmill.shared.records import Record
from gristmill.shared.request import (
    CHAT,
    COMPLETIONS,
    ENDPOINTS,
    Request,
    new_id,
)
from gristmill.shared.request_json import request_from_json
from gristmill.shared.results import Result, response_outcome

NAMES = st.from_regex(r"[A-Za-z0-9._:/@=+-]{1,128}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MODELS = st.text(
    st.characters(exclude_characters="|", min_codepoint=32, exclude_categories=["Cs"]), max_size=256
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=8,
)


def as_stored(request: Request, enqueued_ms: int = 1_700_000_000_000) -> bytes:
    """Write a record as `lua/includes/accept.lua` does."""
    _, tenant, priority, deadline_in_ms, _, digest, tail, payload = request.submit_values()
    assert isinstance(payload, bytes)
    deadline_ms = enqueued_ms + int(deadline_in_ms) if deadline_in_ms else 0
    header = f"1|{enqueued_ms}|{deadline_ms}|{tenant!s}|{priority!s}|{digest!s}|{tail!s}\n"
    return header.encode() + payload


@settings(max_examples=50, deadline=None)
@given(
    names=st.tuples(NAMES, NAMES | st.just(""), NAMES | st.just("")),
    model=MODELS,
    body=st.dictionaries(TEXT, JSON, max_size=3),
    metadata=st.none() | st.dictionaries(st.sampled_from("ab"), JSON),
    estimates=st.tuples(st.integers(0, 10**15 - 1), st.integers(0, 10**15 - 1)),
)
def test_record_reads_back_what_the_request_said(
    names: tuple[str, str, str],
    model: str,
    body: dict[str, Any],
    metadata: dict[str, Any] | None,
    estimates: tuple[int, int],
) -> None:
    tenant, batch, prefix = names
    encoded = encode_body(body)
    request = Request(
        body=encoded,
        tenant=tenant,
        batch=batch,
        prefix=prefix,
        model=model,
        metadata=metadata,
        prompt_tokens=estimates[0],
        max_tokens=estimates[1],
        deadline_s=2.5,
        max_attempts=7,
        priority="low",
    )
    record = Record.parse(as_stored(request))
    assert (record.tenant, record.batch, record.model) == (tenant, batch, model)
    assert (record.prompt_tokens, record.max_tokens) == estimates
    assert (record.body, record.max_attempts, record.priority) == (encoded, 7, "low")
    assert record.deadline_ms - record.enqueued_ms == 2500
    assert orjson.loads(record.metadata or b"null") == (metadata or None)


def test_body_with_newlines_and_bars_is_untouched() -> None:
    body = b'{"prompt":\n"a|b"}\n\n'
    assert Record.parse(as_stored(Request(body=body))).body == body


@pytest.mark.parametrize("data", [b"2|x\n\n{}", b"", b"1|2", b"1|x|0|a\n\n", b"\xff\n\n"])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        Record.parse(data)


def test_ids_are_fresh_and_sort_by_time() -> None:
    ids = [new_id() for _ in range(50)]
    assert len(set(ids)) == 50
    assert ids[0].startswith("0-")
    assert new_id("shard").startswith("shard-")
    assert all(Request(body=b"{}", id=name) for name in ids)


def test_digest_tells_body_and_endpoint_apart() -> None:
    digests = {
        Request(body=body, endpoint=endpoint).digest
        for body in (b"{}", b"{ }")
        for endpoint in ENDPOINTS
    }
    assert len(digests) == 2 * len(ENDPOINTS)
    assert all(len(digest) == 16 for digest in digests)
    assert Request(body=b"{}", tenant="a").digest == Request(body=b"{}", tenant="b").digest


BAD_FIELDS: list[tuple[str, Any, str]] = [
    ("id", "", "id ''"), ("id", "a|b", "id"), ("id", "a\nb", "id"), ("id", 'a"b', "id"),
    ("id", "x" * 129, "1 to 128"), ("id", 7, "id 7"), ("id", "é", "id"),
    ("tenant", "", "tenant"), ("tenant", "a b", "tenant"), ("tenant", None, "tenant"),
    ("batch", "a|b", "batch"), ("reply", "a\n", "reply"), ("prefix", "{", "prefix"),
    ("model", "a|b", "model"), ("model", "a\nb", "model"), ("model", "m" * 257, "256"),
    ("endpoint", "/v1/images", "unknown endpoint"), ("priority", "urgent", "unknown priority"),
    ("max_attempts", 0, "1 to 100"), ("max_attempts", 101, "1 to 100"),
    ("max_attempts", 2.5, "1 to 100"), ("max_attempts", "3", "1 to 100"),
    ("max_attempts", True, "1 to 100"),
    ("prompt_tokens", -1, "prompt_tokens"), ("prompt_tokens", 1.5, "prompt_tokens"),
    ("max_tokens", 2**54, "max_tokens"), ("max_tokens", "9", "max_tokens"),
    ("deadline_s", -1, "deadline_s"), ("deadline_s", math.nan, "deadline_s"),
    ("deadline_s", math.inf, "deadline_s"), ("deadline_s", "5", "deadline_s"),
    ("deadline_s", 1e9, "deadline_s"), ("delay_s", -0.1, "delay_s"), ("delay_s", None, "delay_s"),
    ("metadata", [1], "metadata"), ("metadata", "x", "metadata"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "says"), BAD_FIELDS)
def test_field_that_breaks_its_rule_is_refused_by_name(field: str, value: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        Request(**({"body": b"{}"} | {field: value}))


@pytest.mark.parametrize("metadata", [{"a": {1, 2}}, {"a": "\ud800"}, {"a": math.nan}])
def test_metadata_that_is_no_json_is_refused(metadata: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="metadata cannot be written as JSON"):
        Request(body=b"{}", metadata=metadata).submit_values()


@pytest.mark.parametrize(
    "body",
    [{"a": "\ud800"}, {"a": math.nan}, {"a": [math.inf]}, {"a": {1}}, {"a": b"x"}, {1: "a"},
     {"a": 2**70}],
)  # fmt: skip
def test_body_that_is_no_json_is_refused_not_changed(body: dict[Any, Any]) -> None:
    with pytest.raises(InvalidRequest, match="body cannot be written as JSON"):
        encode_body(body)


def test_null_is_no_reason_to_refuse() -> None:
    assert encode_body({"stop": None, "prompt": "null"}) == b'{"stop":null,"prompt":"null"}'


def test_deeply_nested_body_is_refused() -> None:
    body: dict[str, Any] = {}
    for _ in range(2000):
        body = {"a": body}
    with pytest.raises(InvalidRequest):
        encode_body(body)


@pytest.mark.parametrize(("deadline_s", "ms"), [(0, 0), (0.0001, 1), (0.001, 1), (1.5, 1500)])
def test_durations_are_rounded_up_to_milliseconds(deadline_s: float, ms: int) -> None:
    assert Request(body=b"{}", deadline_s=deadline_s).submit_values()[3] == ms
    assert Request(body=b"{}", delay_s=deadline_s).submit_values()[4] == ms


def test_model_and_estimates_are_read_from_the_body() -> None:
    request = Request.from_body({"model": "m", "prompt": "x" * 400, "max_tokens": 9})
    assert (request.model, request.max_tokens, request.endpoint) == ("m", 9, COMPLETIONS)
    assert 100 <= request.prompt_tokens <= 120


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"max_completion_tokens": 5, "max_tokens": 9}, 5),
        ({}, DEFAULT_MAX_TOKENS),
        ({"max_tokens": None}, DEFAULT_MAX_TOKENS),
        ({"max_tokens": "9"}, DEFAULT_MAX_TOKENS),
        ({"max_tokens": -1}, DEFAULT_MAX_TOKENS),
        ({"max_tokens": True}, DEFAULT_MAX_TOKENS),
    ],
)
def test_limit_of_output_is_estimated(body: dict[str, Any], expected: int) -> None:
    assert Request.from_body({"prompt": "p"} | body).max_tokens == expected


def test_given_fields_win_over_what_the_body_says() -> None:
    request = Request.from_body({"prompt": "", "model": "m"}, model="other", endpoint=COMPLETIONS)
    assert (request.model, request.endpoint) == ("other", COMPLETIONS)


def test_streaming_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="remove stream"):
        Request.from_body({"stream": True})
    quiet = Request.from_body({"prompt": "p", "stream": False})
    assert quiet.body == b'{"prompt":"p","stream":false}'


def test_a_body_that_does_not_tell_its_endpoint_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="none of messages, prompt, input"):
        Request.from_body({"max_tokens": 4})
    assert Request.from_body({"prompt": None, "messages": []}).endpoint == CHAT


@pytest.mark.parametrize("body", [{}, {"max_tokens": 4}, {"messages": None}, {"text": "a"}])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_body_without_input_is_refused(body: dict[str, Any], endpoint: str) -> None:
    names = " or ".join(map(repr, NEEDED[endpoint]))
    with pytest.raises(InvalidRequest, match=f"the body has no {names}, which {endpoint} needs"):
        Request.from_body(body, endpoint=endpoint)
    for name in NEEDED[endpoint]:
        assert Request.from_body(body | {name: "a"}, endpoint=endpoint).endpoint == endpoint


def test_requests_with_one_system_message_share_a_prefix() -> None:
    def of(*messages: Any) -> str:
        return Request.from_body({"messages": list(messages)}).prefix

    system = {"role": "system", "content": "you label"}
    assert of(system, {"role": "user", "content": "a"}) == of(system) != ""
    assert of(system) != of({"role": "system", "content": "you count"})
    assert of({"role": "user", "content": "a"}) == of() == of("text") == ""


def _prefix(**body: Any) -> str:
    return Request.from_body(body).prefix


def test_a_long_beginning_names_the_prefix_where_no_system_message_does() -> None:
    shots, short = "example " * 150, {"role": "system", "content": "you label"}
    long = {"role": "developer", "content": "rule " * 60}

    def user(text: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "text", "text": text}]}

    assert _prefix(prompt=shots + "one") == _prefix(prompt=shots + "two") != ""
    assert _prefix(prompt="one") == ""
    assert _prefix(messages=[short, user(shots + "one")]) == _prefix(
        messages=[short, user(shots + "two")]
    )
    assert _prefix(messages=[short, user(shots)]) != _prefix(messages=[short, user("x" + shots)])
    assert _prefix(messages=[long, user(shots)]) == _prefix(messages=[long, user("x" + shots)])
    assert _prefix(prompt=list(range(2000))) == _prefix(prompt=list(range(2001))) != ""
    assert _prefix(messages=[{"role": "system", "content": None}, 7]) == ""


def test_a_key_names_the_prefix_whatever_the_prompt() -> None:
    by_openai = _prefix(prompt="one", prompt_cache_key="job \u00e9 7")
    assert by_openai == _prefix(prompt="two", prompt_cache_key="job \u00e9 7") != ""
    assert by_openai != _prefix(prompt="one", prompt_cache_key="job 8")
    envelope = '{"body": {"prompt": "three"}, "prefix_key": "job \u00e9 7"}'.encode()
    assert request_from_json(envelope, max_request_bytes=1024).prefix == by_openai


def result_of(**fields: Any) -> Result:
    whole = {
        "id": "a", "status": "failed", "endpoint": CHAT, "attempt": 1, "enqueued_ms": 1,
        "finished_ms": 2, "metadata": None, "response": None, "error": None, "digest": "00",
    }  # fmt: skip
    return Result.parse(orjson.dumps(whole | fields))


def test_outcome_embeds_the_answer_as_it_is() -> None:
    body = b'{ "x":1e400,"y":"\\u00e9" }'
    outcome = response_outcome(2, "w", 200, body)
    assert body in outcome
    assert outcome.startswith(
        b'"attempt":2,"worker":"w","made_by":{},"device_ms":0,"response":{"status_code":200'
    )


def test_result_says_whose_it_is_and_what_made_it() -> None:
    result = result_of(tenant="team-a", made_by={"model": "m", "seed": 7, "later": [1]})
    assert (result.tenant, result.made_by) == ("team-a", {"model": "m", "seed": 7, "later": [1]})


def test_result_of_an_earlier_version_has_no_tenant_and_no_maker() -> None:
    assert (result_of().tenant, result_of().made_by) == ("", {})


@pytest.mark.parametrize(
    ("fields", "failure"),
    [
        ({"status": "succeeded"}, ""),
        ({"error": {"code": "expired", "message": "too late"}}, "expired: too late"),
        ({"response": {"status_code": 400, "body": {"error": {"message": "m"}}}}, "HTTP 400: m"),
        ({"response": {"status_code": 500, "body": {"error": "plain"}}}, "HTTP 500: plain"),
        ({"response": {"status_code": 503, "body": {"detail": 1}}}, "HTTP 503: {'detail': 1}"),
    ],
)
def test_result_says_in_one_line_why_it_failed(fields: dict[str, Any], failure: str) -> None:
    assert result_of(**fields).failure == failure


def test_an_error_carries_its_reason_and_the_id() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Request.from_body({"prompt": "x"}, id="q1", priority="urgent")
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # made above
    assert (error.request_id, error.code) == ("q1", "invalid_request")
    assert error.reason == "unknown priority 'urgent'; use high, normal or low"
    assert str(error) == f"request q1: {error.reason}"


def test_an_unknown_field_names_the_nearest_and_all_others() -> None:
    with pytest.raises(
        InvalidRequest,
        match=r"unknown keyword 'prioritty'; did you mean 'priority'\? Use endpoint, id,",
    ):
        Request.from_body({"prompt": "x"}, prioritty="high")


def test_a_dict_where_bytes_are_meant_names_the_way() -> None:
    with pytest.raises(InvalidRequest, match=r"not bytes; use Request\.from_body"):
        Request(body={"prompt": "x"})  # type: ignore[arg-type]

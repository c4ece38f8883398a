"""Find the fields of a body that the engine ignores; the engine's tests compare the table with vLLM's classes."""

import pytest

from gristmill.shared.errors import InvalidRequest
from gristmill.shared.known_fields import KNOWN, REPLACED, unknown_fields, unknown_in_words
from gristmill.shared.request import CHAT, COMPLETIONS, EMBEDDINGS, ENDPOINTS, Request

MESSAGES = {"messages": [{"role": "user", "content": "Give a number."}]}


def test_the_table_has_every_endpoint() -> None:
    assert set(KNOWN) == set(ENDPOINTS)


@pytest.mark.parametrize(
    ("endpoint", "body", "found"),
    [
        (CHAT, MESSAGES | {"max_tokens": 3, "temperature": 0, "prompt_cache_key": "a"}, ()),
        (CHAT, MESSAGES | {"max_token": 3, "zzz": 1}, ("max_token", "zzz")),
        (CHAT, MESSAGES | {"max_token": None}, ()),
        (EMBEDDINGS, {"input": "x", "dimension": 3}, ("dimension",)),
        (COMPLETIONS, {"prompt": "x", "max_completion_tokens": 3}, ("max_completion_tokens",)),
        ("/v1/unknown", {"max_token": 3}, ()),
    ],
)
def test_fields_that_the_engine_ignores_are_found(
    endpoint: str, body: dict[str, object], found: tuple[str, ...]
) -> None:
    assert unknown_fields(body, endpoint) == found


@pytest.mark.parametrize("name", REPLACED)
def test_a_removed_field_is_refused_with_what_replaces_it(name: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        Request.from_body(MESSAGES | {name: {"type": "object"}})
    assert refusal.value.code == "unknown_field"
    assert refusal.value.reason == f"the engine ignores the field {name!r} of a body; {REPLACED[name]}"  # fmt: skip


def test_words_name_the_nearest_field_and_a_few_of_many() -> None:
    assert unknown_in_words(("dimension", "zzz"), EMBEDDINGS) == (
        "the engine ignores these fields of its body: 'dimension' (did you mean 'dimensions'?), 'zzz';"
        " correct or remove them"
    )
    many = unknown_in_words([f"f{i}" for i in range(9)], CHAT)
    assert "'f4' and 4 more; correct" in many


def test_a_request_knows_its_unknown_fields_and_is_the_same_request() -> None:
    request = Request.from_body(MESSAGES | {"max_token": 3}, id="a")
    assert request.unknown_fields == ("max_token",)
    assert request == Request(
        body=request.body,
        id="a",
        prompt_tokens=request.prompt_tokens,
        max_tokens=256,
        prefix=request.prefix,
    )

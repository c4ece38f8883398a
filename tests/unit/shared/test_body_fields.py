from typing import Any

import pytest

from gristmill.shared.body_fields import (
    DEFAULT_MAX_TOKENS,
    NEEDED,
    TELLING,
    check_body,
    output_limit,
)
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import CHAT, COMPLETIONS, EMBEDDINGS, ENDPOINTS, PLAIN


def test_the_table_has_every_endpoint() -> None:
    assert set(NEEDED) == set(ENDPOINTS)
    assert set(TELLING) == set(PLAIN)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (None, {"messages": []}), (None, {"prompt": ""}), (None, {"input": []}), (CHAT, {"messages": []}),
        (COMPLETIONS, {"prompt": [1, 2]}), (COMPLETIONS, {"prompt_embeds": "AAAA"}),
        (EMBEDDINGS, {"input": "x"}), (EMBEDDINGS, {"messages": []}), ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": []}), ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/v1/score", {"data_1": "a", "data_2": "b"}), ("/v1/score", {"queries": "a", "documents": ["b"]}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}), ("/pooling", {"input": "a"}),
        ("/pooling", {"messages": []}), ("/pooling", {"data": {}}), ("/tokenize", {"prompt": "a"}),
        ("/tokenize", {"messages": []}), ("/score", {"text_1": "a", "text_2": ["b"]}), ("/v1/unknown", {}),
    ],
)  # fmt: skip
def test_what_vllm_takes_is_accepted(endpoint: str | None, body: dict[str, Any]) -> None:
    check_body(body, endpoint)


@pytest.mark.parametrize(
    ("endpoint", "body", "words"),
    [
        (None, {}, "the body has none of messages, prompt, input, so its endpoint is not known"),
        (None, {"max_tokens": 4}, "the body has none of messages, prompt, input"),
        (None, {"prompt": None}, "the body has none of messages, prompt, input"),
        (CHAT, {"prompt": "x"}, "the body has no 'messages', which /v1/chat/completions needs; add it"),
        (COMPLETIONS, {}, "the body has no 'prompt' or 'prompt_embeds', which /v1/completions needs"),
        ("/v1/rerank", {"documents": []}, "the body has no 'query', which /v1/rerank needs"),
        (None, {"custom_id": "a", "url": CHAT, "body": {"messages": []}}, "it is a line of a batch file; pass"),
        (CHAT, {"body": {"messages": []}}, "it is a line of a batch file; pass what is under 'body'"),
    ],
)  # fmt: skip
def test_the_error_names_the_field_that_is_missing(
    endpoint: str | None, body: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_body(body, endpoint)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({"max_output_tokens": 9}, 9), ({"max_completion_tokens": 5, "max_tokens": 7}, 5), ({"max_tokens": 7, "n": 2}, 14),
        ({}, DEFAULT_MAX_TOKENS), ({"max_tokens": 0}, DEFAULT_MAX_TOKENS), ({"max_tokens": "x"}, DEFAULT_MAX_TOKENS),
    ],
)  # fmt: skip
def test_the_output_limit_is_read_from_every_api(body: dict[str, Any], limit: int) -> None:
    assert output_limit(body) == limit

"""The table of known fields has every field of vLLM's request classes, and few that they lack."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from gristmill.shared.body_fields import NEEDED
from gristmill.shared.known_fields import _ALL, KNOWN


def classes() -> dict[str, Any]:
    from vllm.entrypoints.anthropic.protocol import (
        AnthropicCountTokensRequest,
        AnthropicMessagesRequest,
    )
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
    from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
    from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
    from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest

    return {
        "/v1/chat/completions": ChatCompletionRequest,
        "/v1/completions": CompletionRequest,
        "/v1/embeddings": EmbeddingRequest,
        "/v1/responses": ResponsesRequest,
        "/v1/messages": AnthropicMessagesRequest,
        "/v1/messages/count_tokens": AnthropicCountTokensRequest,
        "/v1/score": ScoreRequest,
        "/v1/rerank": RerankRequest,
        "/pooling": PoolingRequest,
        "/classify": ClassificationRequest,
        "/tokenize": TokenizeRequest,
        "/detokenize": DetokenizeRequest,
    }


def members(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for each in get_args(kind):
        yield from members(each)


@pytest.mark.parametrize("endpoint", [path for path in KNOWN if path not in ("/score", "/rerank", "/v2/rerank")])  # fmt: skip
def test_the_table_is_that_of_vllm(endpoint: str) -> None:
    fields = {name for kind in members(classes()[endpoint]) for name in kind.model_fields}
    assert fields - KNOWN[endpoint] == set()
    assert KNOWN[endpoint] - fields - _ALL - {"prompt_cache_key", *NEEDED[endpoint]} == set()

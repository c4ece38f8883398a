"""Check that a body has an input for its endpoint; `Request.from_body` calls this."""

from collections.abc import Mapping
from typing import Any

from gristmill.shared.errors import InvalidRequest

INPUTS: Mapping[str, tuple[str, ...]] = {
    "/v1/chat/completions": ("messages",),
    "/v1/completions": ("prompt", "prompt_embeds"),
    "/v1/embeddings": ("input", "messages"),
    "/v1/responses": ("input", "previous_input_messages"),
    "/v1/messages": ("messages",),
    "/v1/score": ("text_1", "data_1", "queries"),
    "/v1/rerank": ("query",),
    "/pooling": ("input", "messages", "data"),
    "/tokenize": ("prompt", "messages"),
}
"""Endpoint -> fields of vLLM's request classes that carry the input."""


def check_input(body: Mapping[str, Any], endpoint: object) -> None:
    """Check that a body has a field that its endpoint reads.

    Args:
        body: An OpenAI request as a mapping.
        endpoint: Endpoint of the request; an unknown one passes, because `Request` refuses it.

    Raises:
        InvalidRequest: The body has none of the endpoint's `INPUTS`.
    """
    names = INPUTS.get(endpoint, ()) if isinstance(endpoint, str) else ()
    if names and all(body.get(name) is None for name in names):
        raise InvalidRequest(
            f"the body has no {' or '.join(names)}, which {endpoint} reads; add it"
        )

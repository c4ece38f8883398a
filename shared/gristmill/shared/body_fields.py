"""Read from a body what the queue has to know, and check that it has what its endpoint needs. No Redis here.

The check makes a forgotten field an error at the call; the engine checks the rest. vLLM's `protocol.py` files name the fields; a body needs one of them at least.
"""

from collections.abc import Mapping
from typing import Any

from gristmill.shared.errors import InvalidRequest

NEEDED: Mapping[str, tuple[str, ...]] = {
    "/v1/chat/completions": ("messages",),
    "/v1/completions": ("prompt", "prompt_embeds"),
    "/v1/embeddings": ("input", "messages"),
    "/v1/responses": ("input", "prompt", "previous_response_id", "previous_input_messages"),
    "/v1/messages": ("messages",),
    "/v1/messages/count_tokens": ("messages",),
    "/v1/score": ("text_1", "data_1", "queries"),
    "/score": ("text_1", "data_1", "queries"),
    "/v1/rerank": ("query",),
    "/rerank": ("query",),
    "/v2/rerank": ("query",),
    "/pooling": ("input", "messages", "data", "prompt"),
    "/classify": ("input", "messages"),
    "/tokenize": ("prompt", "messages"),
    "/detokenize": ("tokens",),
}
"""Endpoint -> fields of which its body has one at least."""

TELLING = ("messages", "prompt", "input")
"""Fields that tell the endpoint of a body without one."""

LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields that limit the output tokens; the first that a body has decides. The last is of the Responses API."""

DEFAULT_MAX_TOKENS = 256
"""Output tokens assumed for a body that sets no limit; only fairness and claims use the estimate."""


def output_limit(body: Mapping[str, Any]) -> int:
    """Return the most tokens of all the outputs that a body asks for."""
    limit = next((body[name] for name in LIMITS if body.get(name)), None)
    each = limit if type(limit) is int and limit > 0 else DEFAULT_MAX_TOKENS
    n = body.get("n")
    return each * (n if type(n) is int and n > 0 else 1)


def check_body(body: Mapping[str, Any], endpoint: object = None) -> None:
    """Check that a body has what its endpoint needs.

    Args:
        body: An OpenAI request.
        endpoint: Endpoint of the request; None reads it from the body.

    Raises:
        InvalidRequest: No field of the body tells what to answer, or the body is a line of a batch file.
    """
    if isinstance(body.get("body"), Mapping):
        raise InvalidRequest(
            "the body has a 'body' of its own, so it is a line of a batch file; pass what is under 'body', and"
            " the line's url as endpoint=..."
        )
    needed = TELLING if endpoint is None else NEEDED.get(str(endpoint), ())
    if not needed or any(body.get(name) is not None for name in needed):
        return
    if endpoint is None:
        raise InvalidRequest(
            f"the body has none of {', '.join(TELLING)}, so its endpoint is not known; add one of them, or set"
            " endpoint=..."
        )
    names = " or ".join(map(repr, needed))
    raise InvalidRequest(f"the body has no {names}, which {endpoint} needs; add it")

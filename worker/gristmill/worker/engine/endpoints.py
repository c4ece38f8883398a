"""List the paths to which a worker may post requests.

This is an allow-list, because vLLM's application also has routes for administration, which pause
the engine, change its weights or abort requests. A request from a queue must never reach those.
"""

from collections.abc import Iterable
from typing import Any

GENERATE = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/chat/completions/batch",
    "/generative_scoring",
)
POOL = (
    "/v1/embeddings",
    "/v2/embed",
    "/pooling",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
)
TOKENIZE = ("/tokenize", "/detokenize")
INFERENCE = GENERATE + POOL + TOKENIZE


def served(paths: Iterable[str], state: Any = None) -> tuple[str, ...]:
    """Return the endpoints among `paths`, most used first.

    Args:
        paths: The routes of an application or of a server.
        state: The application's state, or None for a server. Every pooling model has all pooling
            routes, but the state has a serving object only for those that the model can answer.
    """
    present = set(paths)
    return tuple(
        path for path in INFERENCE if path in present and not _is_without_object(path, state)
    )


def _is_without_object(path: str, state: Any) -> bool:
    name = _SERVING_OBJECT.get(path)
    return state is not None and name is not None and getattr(state, name, None) is None


_SERVING_OBJECT = {
    "/v1/chat/completions": "openai_serving_chat",
    "/v1/completions": "openai_serving_completion",
    "/v1/responses": "openai_serving_responses",
    "/v1/messages": "anthropic_serving_messages",
    "/v1/embeddings": "serving_embedding",
    "/v2/embed": "serving_embedding",
    "/pooling": "serving_pooling",
    "/classify": "serving_classification",
    "/score": "serving_scores",
    "/v1/score": "serving_scores",
    "/rerank": "serving_scores",
    "/v1/rerank": "serving_scores",
    "/v2/rerank": "serving_scores",
}

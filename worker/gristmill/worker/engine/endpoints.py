"""List the endpoints that a worker serves, among those that a request may name."""

from collections.abc import Iterable
from typing import Any

from gristmill.shared.request import ENDPOINTS


def served(paths: Iterable[str], state: Any = None) -> tuple[str, ...]:
    """Return the endpoints among `paths`, most used first.

    Args:
        paths: The routes of an application or of a server.
        state: The application's state, or None for a server. Every pooling model has all pooling
            routes, but the state has a serving object only for those that the model can answer.
    """
    present = set(paths)
    return tuple(
        path for path in ENDPOINTS if path in present and not _is_without_object(path, state)
    )


def _is_without_object(path: str, state: Any) -> bool:
    name = _SERVING_OBJECT.get(path)
    return state is not None and name is not None and getattr(state, name, None) is None


_SERVING_OBJECT = {
    "/v1/chat/completions": "openai_serving_chat",
    "/v1/completions": "openai_serving_completion",
    "/v1/responses": "openai_serving_responses",
    "/v1/messages": "anthropic_serving_messages",
    "/v1/messages/count_tokens": "anthropic_serving_messages",
    "/v1/embeddings": "serving_embedding",
    "/pooling": "serving_pooling",
    "/classify": "serving_classification",
    "/score": "serving_scores",
    "/v1/score": "serving_scores",
    "/rerank": "serving_scores",
    "/v1/rerank": "serving_scores",
    "/v2/rerank": "serving_scores",
}

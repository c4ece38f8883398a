"""The most output tokens that a request asks for, and the tokens that its model allows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gristmill.producer.commands.forecast.forecast_options import OwnModel
from gristmill.shared.answers import list_in, mapping
from gristmill.shared.fleet import Fleet
from gristmill.shared.request import CHAT, COMPLETIONS, Request

COMPLETION_TOKENS = 16
"""Output tokens of a completion whose body sets no limit, in OpenAI's API and in vLLM."""

_LIMITS: Mapping[str, tuple[str, ...]] = {
    CHAT: ("max_completion_tokens", "max_tokens"),
    COMPLETIONS: ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}
"""Endpoints that generate text -> fields that limit it; the first one counts."""


def most_output(request: Request, body: Mapping[str, Any]) -> int | None:
    """Return the most tokens of each output; None if only the model limits them.

    Args:
        request: The request.
        body: Its body, parsed.
    """
    if request.endpoint not in _LIMITS:
        return 0
    given = [body.get(name) for name in _LIMITS[request.endpoint]]
    limit = next((value for value in given if type(value) is int and value > 0), None)
    return COMPLETION_TOKENS if limit is None and request.endpoint == COMPLETIONS else limit


def num_outputs(body: Mapping[str, Any]) -> int:
    """Return how many outputs a body asks for: each of its prompts gets `n`."""
    n, prompt = body.get("n"), body.get("prompt")
    texts = sum(isinstance(each, str | list) for each in list_in(prompt))
    return max(1, texts) * (n if type(n) is int and n > 0 else 1)


@dataclass(frozen=True, slots=True)
class ModelLengths:
    """The prompt and output tokens that the models of a run allow in a request.

    Attributes:
        by_model: Model -> its tokens.
        default: The tokens for a request that names no model, or another one; None if not known.
    """

    by_model: Mapping[str, int]
    default: int | None

    @classmethod
    def of(cls, fleet: Fleet | None, own: OwnModel | None) -> "ModelLengths":
        """Return the lengths of own workers, or else of those of a queue.

        Args:
            fleet: Models of the live workers; None without a queue.
            own: Model of workers of this command; None if others serve the queue.
        """
        if own is not None:
            return cls({}, own.max_model_len or _in_config(own))
        lengths = {
            name: tokens
            for name, tokens in (fleet.max_model_len if fleet else {}).items()
            if tokens
        }
        distinct = set(lengths.values())
        return cls(lengths, distinct.pop() if len(distinct) == 1 else None)

    def tokens(self, model: str) -> int | None:
        """Return the tokens that a model allows; None if not known."""
        return self.by_model.get(model, self.default)


def _in_config(own: OwnModel) -> int | None:
    """Return the length in a model's `config.json`; None if it has no length, or a factor that changes the length."""
    from gristmill.producer.commands.forecast.model_tokenizer import config_of

    config = mapping(config_of(own.name, own.revision if own.name == own.tokenizer else None))
    text = mapping(config.get("text_config")) or config
    scaling = mapping(text.get("rope_scaling")) or mapping(text.get("rope_parameters"))
    length = text.get("max_position_embeddings")
    return length if type(length) is int and "factor" not in scaling else None

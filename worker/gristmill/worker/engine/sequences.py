"""Count the sequences that a request asks of the engine, before the engine sees it.

`refusals.py` refuses a request with too many, and `admission/room.py` counts a place for each. The
header of a request has no such number, so both read the body.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from gristmill.shared.answers import mapping
from gristmill.shared.lenient_body import fields_of
from gristmill.shared.request import CHAT, COMPLETIONS

MAX_INPUTS = 2048
"""Most inputs of one request that generates nothing, unless the engine runs more at a time.

OpenAI's embeddings take as many. Such inputs end in one step each, so more than `max_num_seqs` of
them may wait inside the engine.
"""

_COUNT = TypeAdapter(Annotated[int, Field(ge=0)])

_INPUTS = (
    "input",
    "documents",
    "queries",
    "items",
    "text_1",
    "text_2",
    "data_1",
    "data_2",
    "messages",
)
"""Fields of pooling, scoring and reranking that may hold a list of inputs."""

_GENERATES_ONE = ("/v1/responses", "/v1/messages")
_GENERATING = (COMPLETIONS, CHAT, *_GENERATES_ONE)
_RUNS_NOTHING = ("/v1/messages/count_tokens", "/tokenize", "/detokenize")


def num_sequences(endpoint: str, body: bytes) -> int:
    """Return how many sequences the engine runs for a request, at least one.

    Args:
        endpoint: The path that the request names.
        body: The JSON body. One that vLLM cannot read counts as one sequence, as vLLM refuses it.
    """
    return count_sequences(endpoint, fields_of(body))


def count_sequences(endpoint: str, fields: Mapping[str, Any]) -> int:
    """Return how many sequences the engine runs for the fields of a body, at least one."""
    return _COUNTERS.get(endpoint, _num_pooled)(fields)


def max_sequences(endpoint: str, max_num_seqs: int) -> int:
    """Return the most sequences that one request to an endpoint may ask for.

    Args:
        endpoint: The path that the request names.
        max_num_seqs: Sequences that the engine runs at the same time.
    """
    return max_num_seqs if endpoint in _GENERATING else max(MAX_INPUTS, max_num_seqs)


def _num_completions(fields: Mapping[str, Any]) -> int:
    num_prompts = _num_prompts(fields.get("prompt")) + _num_prompts(fields.get("prompt_embeds"))
    return max(1, num_prompts) * _num_choices(fields)


def _num_choices(fields: Mapping[str, Any]) -> int:
    """Return `n` as vLLM reads it: "7" and 7.0 are 7. With a beam search, `n` is the beam's width."""
    try:
        return max(1, _COUNT.validate_python(fields.get("n")))
    except ValueError:
        return 1


def _num_prompts(prompt: Any) -> int:
    """Return the number of prompts in a field; a list of token ids is one prompt."""
    if prompt is None:
        return 0
    is_list = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
    return len(prompt) if is_list else 1


def _num_pooled(fields: Mapping[str, Any]) -> int:
    return max(1, sum(_num_inputs(fields.get(name), name) for name in _INPUTS))


def _num_inputs(value: Any, name: str) -> int:
    """Return the number of inputs in a field; the messages of one chat are one input."""
    if value is None:
        return 0
    parts = mapping(value).get("content", value)
    if not isinstance(parts, list) or not parts:
        return 1
    is_one = isinstance(parts[0], int | float) or (name == "messages" and mapping(parts[0]))
    return 1 if is_one else len(parts)


_COUNTERS: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    COMPLETIONS: _num_completions,
    CHAT: _num_choices,
    **dict.fromkeys((*_GENERATES_ONE, *_RUNS_NOTHING), lambda _: 1),
}

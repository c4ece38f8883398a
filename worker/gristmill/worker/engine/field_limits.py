"""Limit the fields of a body whose cost grows with their size and falls on all requests.

vLLM tokenizes `bad_words` in the worker's event loop. It looks for each `stop` after each token, and
applies biases and stop tokens in the engine's steps. `refusals.py` calls this module.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gristmill.shared.answers import mapping


class FieldLimit(NamedTuple):
    """The limits of one field.

    Attributes:
        max_entries: Most entries of its list or object.
        max_chars: Most characters of one entry, if the entries are texts.
        max_all_chars: Most characters of all entries together.
    """

    max_entries: int
    max_chars: int = 1_000
    max_all_chars: int = 65_536


BAD_WORDS = FieldLimit(max_entries=1_000)
"""Limits of `bad_words`; at them the event loop tokenizes for about 0.2 s. One word of 12 MB took 70 s."""

STOPS = FieldLimit(max_entries=64)
"""Limits of stop texts. OpenAI takes 4; each one is looked for after each token of each sequence."""

TOKENS = FieldLimit(max_entries=1_024)
"""Limits of token ids for which the engine computes something in its steps. OpenAI takes 300 biases.

49,000 biases made each step of the engine 0.2 s longer, for all requests.
"""

VOCABULARY = FieldLimit(max_entries=2**18)
"""Limits of a list that may name the whole vocabulary, about the largest one that models have."""

MAX_PATTERN_TOKENS = 1_024
"""Longest pattern of `repetition_detection`; the engine compares patterns of each length after each token."""

_LIMITS: Mapping[str, FieldLimit] = {
    "bad_words": BAD_WORDS,
    "stop": STOPS,
    "stop_sequences": STOPS,
    "logit_bias": TOKENS,
    "stop_token_ids": TOKENS,
    "logprob_token_ids": TOKENS,
    "allowed_token_ids": VOCABULARY,
}


def field_excess(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the name of a field above its limit and the text of the error; None if all are within.

    Args:
        fields: The fields of a body.
    """
    for name, limit in _LIMITS.items():
        if excess := _excess(fields.get(name), limit):
            return name, f"{name} has {excess}; shorten it"
    size = mapping(fields.get("repetition_detection")).get("max_pattern_size")
    if isinstance(size, int | float | str) and _is_above(size, MAX_PATTERN_TOKENS):
        name = "repetition_detection"
        return (
            name,
            f"{name}.max_pattern_size is above the limit of {MAX_PATTERN_TOKENS:,}; lower it",
        )
    return None


def _is_above(size: float | str, limit: int) -> bool:
    """Return whether a number, or a text that vLLM reads as one, is above a limit."""
    try:
        return (
            float(size) if isinstance(size, str) else size
        ) > limit  # a float holds no large int
    except ValueError:
        return False


def _excess(value: Any, limit: FieldLimit) -> str | None:
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list | dict):
        return None
    if len(entries) > limit.max_entries:
        return f"{len(entries):,} entries, the limit is {limit.max_entries:,}"
    sizes = [len(entry) for entry in entries if isinstance(entry, str)]
    if max(sizes, default=0) > limit.max_chars:
        return f"an entry of {max(sizes):,} characters, the limit is {limit.max_chars:,}"
    if sum(sizes) > limit.max_all_chars:
        return f"{sum(sizes):,} characters, the limit is {limit.max_all_chars:,}"
    return None

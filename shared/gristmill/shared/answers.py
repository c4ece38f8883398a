"""Read what an engine answered: its text, tokens and error. An answer may be any JSON."""

from collections.abc import Mapping
from typing import Any

MAX_TOKENS = 10**9
"""Most tokens that one request can have; a larger number from a server counts as 0."""


def message_in(body: Any) -> Any:
    """Return the message of an error answer: that of its `error`, else the whole `error` or body."""
    detail = mapping(body).get("error", body)
    return detail.get("message", detail) if isinstance(detail, dict) else detail


def code_in(body: Any) -> str:
    """Return the code of an error answer; empty if it is no text."""
    code = mapping(mapping(body).get("error")).get("code")
    return code if isinstance(code, str) else ""


def answer_text(body: Any) -> str | None:
    """Return the text in an engine's answer, or None if it has none.

    Chat and completions have choices, and the first one counts. The Responses API and Anthropic's Messages
    API have a list of parts, and the texts of all parts are joined.
    """
    answer = mapping(body)
    choices = list_in(answer.get("choices"))
    if choices:
        first = mapping(choices[0])
        found = first.get("text", mapping(first.get("message")).get("content"))
        return found if isinstance(found, str) else None
    parts = list_in(answer.get("content"))
    for item in list_in(answer.get("output")):
        parts = [*parts, *list_in(mapping(item).get("content"))]
    kinds = ("text", "output_text")
    texts = [mapping(part).get("text") for part in parts if mapping(part).get("type") in kinds]
    return "".join(text for text in texts if isinstance(text, str)) if texts else None


CUT = "length"
"""Finish reason of an answer that reached its limit of tokens."""


def finish_reason(body: Any) -> str | None:
    """Return why the text of a chat or a completion ended; None for an answer without choices."""
    choices = list_in(mapping(body).get("choices"))
    reason = mapping(choices[0]).get("finish_reason") if choices else None
    return reason if isinstance(reason, str) else None


def token_counts(body: Any) -> tuple[int, int]:
    """Return prompt and output tokens of an engine's answer, under either API's names.

    Chat and completions say prompt_tokens and completion_tokens; the Responses API says
    input_tokens and output_tokens.
    """
    usage = mapping(mapping(body).get("usage"))
    prompt_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
    output_tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    return token_count(prompt_tokens), token_count(output_tokens)


def cached_tokens(body: Any) -> int:
    """Return the prompt tokens of an answer that were in the prefix cache; 0 if the engine does not say."""
    return _detail(body, ("prompt_tokens_details", "input_tokens_details"), "cached_tokens")


def reasoning_tokens(body: Any) -> int:
    """Return the output tokens of an answer's reasoning; 0 if the engine does not say."""
    names = ("completion_tokens_details", "output_tokens_details")
    return _detail(body, names, "reasoning_tokens")


def _detail(body: Any, details: tuple[str, str], name: str) -> int:
    """Return a number in the details of the usage, which the two APIs of OpenAI name differently."""
    usage = mapping(mapping(body).get("usage"))
    return token_count(mapping(usage.get(details[0]) or usage.get(details[1])).get(name))


def token_count(value: Any) -> int:
    """Return a number of tokens; 0 if a server's value is not a plausible number."""
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0


def list_in(value: Any) -> list[Any]:
    """Return a value that is a list; otherwise an empty list."""
    return value if isinstance(value, list) else []


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a value that is an object; otherwise an empty object."""
    return value if isinstance(value, dict) else {}

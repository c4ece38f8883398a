"""Name the prompt prefix of a request, so that requests with one prefix can run close together.

`Request.from_body` calls this for each request. The name depends on the request alone, so
independent producers agree on it (docs/decisions/0014-scheduling.md).
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

PREFIX_CHARS = 1024
"""Characters at the start of a prompt that name its prefix: about 16 blocks of vLLM's prefix
cache."""

MIN_SYSTEM_CHARS = 256
"""Shortest system message that names the prefix by itself."""

MAX_PREFIX_MESSAGES = 8
"""Most messages of a chat that are read; this bounds the work for a long chat."""


def prefix_of_key(key: str) -> str:
    """Return the name of a prefix: 8 hex digits over the key, which may be any text."""
    return blake2b(key.encode(errors="surrogatepass"), digest_size=4).hexdigest()


def prefix_of(body: Mapping[str, Any]) -> str:
    """Return the name of a body's prompt prefix, or "" for a body without any text.

    The key is the first of these that the body has: OpenAI's `prompt_cache_key`; a system message of at least
    `MIN_SYSTEM_CHARS`; the first `PREFIX_CHARS` of system message and prompt; a shorter system message.
    """
    key = body.get("prompt_cache_key")
    if isinstance(key, str) and key:
        return prefix_of_key(key)
    system, rest = _beginnings(body)
    begins = system
    if len(system) < MIN_SYSTEM_CHARS and len(system) + len(rest) >= PREFIX_CHARS:
        begins = system + rest
    return prefix_of_key(begins[:PREFIX_CHARS]) if begins else ""


def _beginnings(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return the beginning of the system message, and of the rest of the prompt."""
    prompt, messages = body.get("prompt"), body.get("messages")
    if isinstance(prompt, list):  # token ids, or several prompts
        prompt = str(prompt[:PREFIX_CHARS])
    if isinstance(prompt, str):
        return "", prompt[:PREFIX_CHARS]
    if not isinstance(messages, list):
        return "", ""
    first = [message for message in messages[:MAX_PREFIX_MESSAGES] if isinstance(message, dict)]
    texts = [_text(message.get("content"))[:PREFIX_CHARS] for message in first]
    has_system = bool(first) and first[0].get("role") in ("system", "developer")
    return ("".join(texts[:has_system]), "".join(texts[has_system:]))


def _text(content: object) -> str:
    """Return the text of a message, whose content may be a list of parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in parts if isinstance(text, str))
    return content if isinstance(content, str) else ""

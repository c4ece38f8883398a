"""Hide the keys and tokens in vLLM's flags before a log or a person sees them.

Commands import it on machines without an engine, so it imports nothing of one.
"""

import re
from collections.abc import Iterator, Sequence

HIDDEN = "***"
"""Text that replaces a secret in logs and errors."""

_SECRET_FLAGS = ("--api-key", "--hf-token")
_LIKE_A_SECRET = re.compile("api[-_]?key|hf[-_]?token|secret|password", re.IGNORECASE)
_URL_WITH_PASSWORD = re.compile(r"://\S*@")


def without_secrets(argv: Sequence[str]) -> list[str]:
    """Return the arguments with keys, tokens and passwords hidden, for logs and errors."""
    return [shown for _, shown in _shown(argv)]


def secret_flags(argv: Sequence[str]) -> list[str]:
    """Return the flags whose values `without_secrets` hides."""
    return list(dict.fromkeys(flag for flag, shown in _shown(argv) if shown.endswith(HIDDEN)))


def _shown(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each argument as people may see it, after the flag that it belongs to."""
    flag, is_secret = "the model", False  # a first argument that is no flag
    for argument in argv:
        if argument.startswith("--"):
            flag, has_value, value = argument.partition("=")
            is_secret = _names_a_secret(flag.replace("_", "-"))
            is_hidden = has_value and (is_secret or _has_a_secret(value))
            yield flag, f"{flag}={HIDDEN}" if is_hidden else argument
        else:
            yield flag, HIDDEN if is_secret or _has_a_secret(argument) else argument


def _names_a_secret(flag: str) -> bool:
    """Return whether a flag takes a secret.

    Abbreviations count, because argparse accepts them. Similar names count, because people mistype.
    """
    is_short_form = len(flag) > len("--") and any(full.startswith(flag) for full in _SECRET_FLAGS)
    return is_short_form or bool(_LIKE_A_SECRET.search(flag))


def _has_a_secret(value: str) -> bool:
    """Return whether a value has a URL with a password, or names a secret as JSON does."""
    return bool(_LIKE_A_SECRET.search(value) or _URL_WITH_PASSWORD.search(value))

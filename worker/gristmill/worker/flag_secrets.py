"""Hide the keys and tokens in vLLM's flags before a log or a person sees them.

Commands import it on machines without an engine, so it imports nothing of one.
"""

import re
from collections.abc import Sequence

HIDDEN = "***"
"""Text that replaces a secret in logs and errors."""

_SECRET_FLAGS = ("--api-key", "--hf-token")
_LIKE_A_SECRET = re.compile("api-?key|hf-?token|secret|password")


def without_secrets(argv: Sequence[str]) -> list[str]:
    """Return the arguments with keys and tokens hidden, for logs and errors."""
    shown: list[str] = []
    is_secret = False
    for argument in argv:
        name, has_value, _ = argument.partition("=")
        if argument.startswith("--"):
            is_secret = _names_a_secret(name.replace("_", "-"))
            shown.append(f"{name}={HIDDEN}" if is_secret and has_value else argument)
        else:
            shown.append(HIDDEN if is_secret else argument)
    return shown


def _names_a_secret(flag: str) -> bool:
    """Return whether a flag takes a secret.

    Abbreviations count, because argparse accepts them. Similar names count, because people mistype.
    """
    is_short_form = len(flag) > len("--") and any(full.startswith(flag) for full in _SECRET_FLAGS)
    return is_short_form or bool(_LIKE_A_SECRET.search(flag))

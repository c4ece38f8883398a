"""The rule of names, and how a value is shown in an error message."""

import re

from gristmill.shared.errors import InvalidRequest

NAME = re.compile(r"[A-Za-z0-9._:/@=+-]{1,128}")
NAME_RULE = "1 to 128 letters, digits or any of . _ : / @ = + -"


def check_tenant(name: object) -> None:
    """Check that a name is allowed for a tenant.

    Raises:
        InvalidRequest: The name is not allowed; the message has the rule.
    """
    if not is_match(NAME, name):
        raise InvalidRequest(f"tenant {shown(name)} is not allowed; use {NAME_RULE}")


def is_match(pattern: re.Pattern[str], value: object) -> bool:
    """Return whether a value is a text that a pattern matches whole."""
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def shown(value: object) -> str:
    """Return a value for a message, cut to a readable length."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python writes
        return f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:77]}... ({len(text):,} characters)"

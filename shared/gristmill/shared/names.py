"""The rule of names of requests, tenants, batches and the like."""

import re

from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import shown

NAME = re.compile(r"[A-Za-z0-9._:/@=+-]{1,128}")
NAME_RULE = "1 to 128 letters, digits or any of . _ : / @ = + -"

DEFAULT_TENANT = "default"
"""Tenant of requests and batches whose caller names none."""


def owned_id(tenant: str, name: str) -> str:
    """Return the id of a request of the gateway; it begins with the tenant, so that the gateway can tell the owner."""
    return f"{tenant}.{name}"


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

"""The highest lane that a tenant may ask for: the rule, its error, and what a request without a priority gets."""

from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import PRIORITIES, Priority


def check_priority(priority: Priority, highest: Priority, tenant: str) -> None:
    """Refuse a priority above the tenant's highest one.

    A lowered lane would drop a guarantee that somebody asked for.

    Raises:
        InvalidRequest: The priority is too high; the code is `priority_not_allowed`.
    """
    if PRIORITIES.index(priority) < PRIORITIES.index(highest):
        raise InvalidRequest(
            f"priority {priority!r} is above {highest!r}, the highest of tenant {tenant}; leave it out, or ask the"
            f" operator: gristmill tenant change {tenant} --max-priority {priority}",
            "priority_not_allowed",
        )


def lower_of(priority: Priority, highest: Priority) -> Priority:
    """Return a priority, or the highest one if that is lower."""
    return max(priority, highest, key=PRIORITIES.index)

"""The format of a queue's keys and records, and the error for a queue of another format."""

from gristmill.shared.errors import WrongFormat

FORMAT = "1"
"""Version of keys and records; `lua/includes/types.lua` has the same."""

NO_FORMAT = "0"
"""Stands for the format of versions before 0.1.0, which wrote none."""


def wrong_format(queue: str, format_of_queue: str) -> WrongFormat:
    """Return the error for a queue of another format."""
    if format_of_queue == NO_FORMAT:
        return WrongFormat(
            f"a version of Gristmill before 0.1.0 wrote queue {queue}, and this version reads format {FORMAT}. Let"
            " workers of that version finish it, use another queue (--queue, GRISTMILL_QUEUE), or delete it with all"
            f" its data: gristmill queue purge --queue {queue}"
        )
    return WrongFormat(
        f"queue {queue} has format {format_of_queue}, and this version of Gristmill reads format {FORMAT}. Upgrade this"
        " Gristmill to the version of the queue's workers, or use another queue (--queue, GRISTMILL_QUEUE)"
    )

"""The queues that `gristmill run` makes for workers of its own: their names, and how such a run is resumed."""

import re

from ulid import ULID

EMBEDDED = "embedded"
"""Name of the queue on an embedded Redis, the same for all: a resumed run has a new Redis."""

_OWN = re.compile(r"run-[0-9A-HJKMNP-TV-Z]{26}")


def new_queue() -> str:
    """Return a name for the queue of one run on the user's Redis."""
    return f"run-{ULID()}"


def is_of_one_run(queue: str) -> bool:
    """Return True if `new_queue` made the name, so the queue may be deleted with the run."""
    return bool(_OWN.fullmatch(queue))


def other_queue_in_words(run: str, then: str, now: str) -> str:
    """Say how to resume a run whose queue differs from that of the command line.

    Args:
        run: Name of the run.
        then: Its queue.
        now: Queue as the command line asks for it now.
    """
    anew = "or begin a new run with --force"
    if then == EMBEDDED:
        began = "on a Redis and workers of its own"
        remedy = "resume it with gristmill run, vLLM's flags after -- and without REDIS_URL"
    elif is_of_one_run(then):
        began = f"on workers of its own, in queue {then} of the Redis that REDIS_URL named"
        remedy = "resume it with gristmill run, REDIS_URL and vLLM's flags after --"
    elif now == EMBEDDED or is_of_one_run(now):
        began = f"on the workers of queue {then}"
        remedy = f"resume it with REDIS_URL and --queue {then}, and without vLLM's flags after --"
    else:
        return f"run {run} is in queue {then}, not {now}; use the same as before, {anew}"
    return f"run {run} began {began}; {remedy}, {anew}"

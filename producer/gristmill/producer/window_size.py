"""How many requests of one call or run are unfinished at a time, unless the user says another number."""

WINDOW = 4096
"""Most unfinished requests of a call, or of a run on one engine."""

MAX_WINDOW = 100_000
"""Most unfinished requests of a run."""


def window_of(num_engines: int) -> int:
    """Return how many unfinished requests keep some engines busy."""
    return min(MAX_WINDOW, WINDOW * num_engines)

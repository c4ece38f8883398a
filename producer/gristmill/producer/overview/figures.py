"""Write figures of the overview for people; the gateway's page, `gristmill top` and `queue stats` show them alike."""

from datetime import UTC, datetime, timedelta

from gristmill.shared.redis_full import in_words

UNKNOWN = "–"  # noqa: RUF001  # a minus sign would look like the beginning of a number
"""Text of a figure that is None."""

_START = datetime(1970, 1, 1, tzinfo=UTC)


def count(number: float | None) -> str:
    """Return a number with all its digits, such as `12,345`; below 10 with one decimal unless it is whole."""
    if number is None:
        return UNKNOWN
    return f"{number:,.0f}" if number >= 10 or number == round(number) else f"{number:.1f}"


def short_count(number: float | None) -> str:
    """Return a number in at most seven characters, such as `9,999` or `12.3 M`."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if number is not None and abs(number) >= size:
            return f"{number / (1e3 if unit == 'k' else size):.1f} {unit}"
    return count(number)


def percent(share: float | None) -> str:
    """Return a share of 1 as a percentage, such as `87%`."""
    return UNKNOWN if share is None else f"{share:.0%}"


def duration(seconds: float | None) -> str:
    """Return a duration in at most two units, such as `0.3 s`, `45 s`, `10 min` or `3 h 5 min`."""
    if seconds is None:
        return UNKNOWN
    if abs(seconds) < 10:
        return f"{seconds:.1f} s"
    sign, whole = "-" if seconds < 0 else "", round(abs(seconds))
    for unit, size, smaller, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{sign}{whole // size} {unit} {whole % size // part} {smaller}"
    return f"{sign}{whole // 60} min" if whole >= 600 else f"{sign}{whole} s"


def moment(at_ms: float | None) -> str:
    """Return a moment in UTC, such as `2026-11-29 08:15:00`. 0 and a time after the year 9999 count as unknown."""
    try:
        at = _START + timedelta(milliseconds=at_ms or 0)
    except OverflowError:
        return UNKNOWN
    return at.strftime("%Y-%m-%d %H:%M:%S") if at_ms else UNKNOWN


def memory(used_bytes: int, max_bytes: int) -> str:
    """Return how much memory Redis uses.

    Args:
        used_bytes: Bytes that Redis uses; 0 if this Redis user may not ask.
        max_bytes: Its `maxmemory`; 0 for no limit.
    """
    if not used_bytes:
        return "unknown: this Redis user may not call INFO"
    if not max_bytes:
        return f"Redis uses {in_words(used_bytes)}, without a maxmemory"
    share = percent(used_bytes / max_bytes)
    return f"Redis uses {in_words(used_bytes)} of maxmemory {in_words(max_bytes)} ({share})"

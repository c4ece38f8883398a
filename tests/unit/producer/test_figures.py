"""The texts of figures, which the page, `gristmill top` and `queue stats` share."""

from gristmill.producer.overview.figures import (
    UNKNOWN,
    count,
    duration,
    memory,
    moment,
    percent,
    short_count,
)


def test_counts_have_all_digits_or_at_most_seven_characters() -> None:
    assert [count(each) for each in (None, 0, 0.25, 9_999, 12_345.4)] == [
        UNKNOWN, "0", "0.2", "9,999", "12,345",
    ]  # fmt: skip
    assert [short_count(each) for each in (None, 0, 0.25, 9_999, 12_345, 1.5e6, 2e9)] == [
        UNKNOWN, "0", "0.2", "9,999", "12.3 k", "1.5 M", "2.0 G",
    ]  # fmt: skip
    assert [percent(each) for each in (None, 0, 0.871)] == [UNKNOWN, "0%", "87%"]


def test_durations_have_at_most_two_units() -> None:
    assert [duration(each) for each in (None, 0.25, 45, 599, 600, 3_700, 90_000, -30, -0.5)] == [
        UNKNOWN, "0.2 s", "45 s", "599 s", "10 min", "1 h 1 min", "1 d 1 h", "-30 s", "-0.5 s",
    ]  # fmt: skip


def test_a_moment_that_no_calendar_has_is_unknown() -> None:
    assert [moment(each) for each in (None, 0, 1, 1e18)] == [
        UNKNOWN,
        UNKNOWN,
        "1970-01-01 00:00:00",
        UNKNOWN,
    ]


def test_memory_says_why_it_is_unknown() -> None:
    assert memory(0, 0) == "unknown: this Redis user may not call INFO"
    assert memory(2**20, 0) == "Redis uses 1 MiB, without a maxmemory"
    assert memory(2**20, 2**30) == "Redis uses 1 MiB of maxmemory 1 GiB (0%)"

import math
from dataclasses import replace

import pytest
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    SlotNotCoveredError,
    TimeoutError,
)
from structlog.testing import capture_logs

from gristmill.shared import redis_retry
from gristmill.shared.errors import NotReplicated, QueueFull, TooLargeForRedis
from gristmill.shared.redis_retry import (
    MIN_REFUSED_BYTES,
    RedisNotice,
    announce_redis_waits,
    is_transient,
    retrying,
    retrying_sized,
)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionError(), True), (TimeoutError(), True), (ReadOnlyError(), True),
        (OutOfMemoryError(), True), (OSError(), True), (MasterNotFoundError(), True),
        (ClusterDownError("CLUSTERDOWN"), True), (SlotNotCoveredError(), True), (NotReplicated(), True), (QueueFull("", 1, 1), False),
        (AuthenticationError(), False), (ResponseError(), False), (ValueError(), False),
    ],
)  # fmt: skip
def test_only_what_passes_by_itself_is_repeated(error: Exception, passes: bool) -> None:
    assert is_transient(error) is passes


class Flaky:
    """An operation that fails some times before it answers."""

    def __init__(self, error: Exception, num_failures: int) -> None:
        self.error, self.num_failures, self.num_calls = error, num_failures, 0

    async def __call__(self) -> str:
        self.num_calls += 1
        if self.num_calls <= self.num_failures:
            raise self.error
        return "answer"


async def test_operation_is_repeated_until_redis_answers() -> None:
    call = Flaky(ConnectionError(), 2)
    assert await retrying(call) == "answer"
    assert call.num_calls == 3


async def test_refused_password_ends_at_once() -> None:
    call = Flaky(AuthenticationError("WRONGPASS"), 9)
    with pytest.raises(AuthenticationError):
        await retrying(call)
    assert call.num_calls == 1


@pytest.mark.parametrize("num_outages", [0, 2])
async def test_large_call_on_which_redis_hangs_up_is_refused_but_an_outage_is_none(
    monkeypatch: pytest.MonkeyPatch, num_outages: int
) -> None:
    monkeypatch.setattr(redis_retry, "WAIT_JITTER_S", 0)
    call, is_answering = Flaky(ConnectionError(), 99), Flaky(ConnectionError(), num_outages)
    with pytest.raises(TooLargeForRedis, match="524,288 bytes"):
        await retrying_sized(call, MIN_REFUSED_BYTES, is_answering, 3)
    assert call.num_calls == num_outages + 3


async def test_value_that_redis_calls_too_long_is_refused_at_once() -> None:
    call = Flaky(ResponseError("Protocol error: invalid bulk length"), 99)
    with pytest.raises(TooLargeForRedis):
        await retrying_sized(call, MIN_REFUSED_BYTES, Flaky(ValueError(), 0))
    assert call.num_calls == 1


async def test_small_call_is_never_refused_for_its_size() -> None:
    call = Flaky(ConnectionError(), 3)
    assert await retrying_sized(call, 1000, Flaky(ValueError(), 0), 1) == "answer"


async def test_last_error_is_raised_when_time_is_up() -> None:
    call = Flaky(TimeoutError(), 10**6)
    with pytest.raises(TimeoutError):
        await retrying(call, timeout_s=0.2)
    assert call.num_calls >= 2


@pytest.mark.parametrize("code", ["NOREPLICAS", "MISCONF", "BUSY", "UNBLOCKED"])
def test_answers_that_pass_are_transient(code: str) -> None:
    assert is_transient(ResponseError(f"{code} something"))
    assert not is_transient(ResponseError(f"WRONGTYPE {code}"))


@pytest.fixture
def own_announcement(monkeypatch: pytest.MonkeyPatch) -> None:
    announcement = replace(
        redis_retry._announcement, notice=RedisNotice("", math.inf), retries_before=0
    )
    monkeypatch.setattr(redis_retry, "_announcement", announcement)


@pytest.mark.usefixtures("own_announcement")
async def test_waits_are_told_once_in_an_interval() -> None:
    told: list[str] = []
    announce_redis_waits("redis://u:secret@h/0", retries_before=1, tell=told.append)
    with pytest.raises(ConnectionError):
        await retrying(_refused, timeout_s=1.5)
    assert told == ["Redis at redis://h/0 does not answer (refused); waiting for it"]


@pytest.mark.usefixtures("plain_logging", "own_announcement")
async def test_a_program_without_an_entry_point_is_warned_once_an_outage() -> None:
    with capture_logs() as events:
        await retrying(Flaky(ConnectionError("refused"), 3))
        assert len(events) == 1
        await retrying(Flaky(ConnectionError("refused"), 1))
    assert [event["event"] for event in events] == ["redis.waited_for"] * 2


@pytest.mark.usefixtures("plain_logging")
def test_a_notice_without_a_listener_is_an_event_without_the_password() -> None:
    with capture_logs() as events:
        notice = RedisNotice("redis://u:secret@h/0")
        notice(ConnectionError("refused"))
        notice(ConnectionError("refused"))
    (event,) = events
    assert event["event"] == "redis.waited_for"
    assert (event["url"], event["error"]) == ("redis://h/0", "refused")
    assert "REDIS_URL" in event["remedy"]


@pytest.mark.usefixtures("plain_logging")
def test_a_notice_of_an_error_without_words_says_what_it_is() -> None:
    with capture_logs() as events:
        RedisNotice("")(TimeoutError())
    assert events[0]["error"] == "no answer in time"


async def _refused() -> None:
    raise ConnectionError("refused")

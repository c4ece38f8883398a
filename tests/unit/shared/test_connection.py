import pytest
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)
from stamina.instrumentation import set_on_retry_hooks

from gristmill.shared.connection import (
    connect,
    is_transient,
    notice_waits,
    retrying,
)
from gristmill.shared.errors import SettingsError


@pytest.mark.parametrize(
    "url", ["redis://h:1/2", "rediss://u:p@h", "unix:///tmp/s?db=1", "redis://[::1]:6379"]
)
async def test_client_neither_retries_nor_decodes(url: str) -> None:
    client = connect(url, 12.0)
    options = client.connection_pool.connection_kwargs
    assert options["retry"].get_retries() == 0
    assert (options["socket_timeout"], options["decode_responses"]) == (12.0, False)
    assert client.connection_pool.max_connections > 1000
    await client.aclose()


@pytest.mark.parametrize("url", ["http://h", "localhost:6379", "", "amqp://u:secret@h"])
def test_other_schemes_are_refused_by_name(url: str) -> None:
    with pytest.raises(SettingsError, match="use redis://, rediss:// or unix://") as caught:
        connect(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["redis://u:sec/ret@h", "redis://:secret@h:port", "redis://[secret"]
)
def test_unreadable_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        connect(url)
    assert "sec" not in str(caught.value).replace("percent-encode", "").replace("special", "")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:p@h:1/2", "redis://h:1/2"),
        ("redis://h", "redis://h"),
        ("redis://u:p@ss@h", "redis://h"),
        ("redis://h/0?password=p", "redis://h/0"),
        ("redis://[x", "<unreadable URL>"),
    ],
)
def test_redacted_url_has_no_secret(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionError(), True), (TimeoutError(), True), (ReadOnlyError(), True),
        (OutOfMemoryError(), True), (OSError(), True),
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


async def test_last_error_is_raised_when_time_is_up() -> None:
    call = Flaky(TimeoutError(), 10**6)
    with pytest.raises(TimeoutError):
        await retrying(call, timeout_s=0.2)
    assert call.num_calls >= 2


@pytest.mark.parametrize("code", ["NOREPLICAS", "MISCONF", "BUSY", "UNBLOCKED"])
def test_answers_that_pass_are_transient(code: str) -> None:
    assert is_transient(ResponseError(f"{code} something"))
    assert not is_transient(ResponseError(f"WRONGTYPE {code}"))


async def test_waits_are_told_once_in_an_interval() -> None:
    told: list[str] = []
    notice_waits(lambda error: told.append(str(error)), 3600, retries_before=1)
    try:
        with pytest.raises(ConnectionError):
            await retrying(_refused, timeout_s=1.5)
    finally:
        set_on_retry_hooks(None)
    assert told == ["refused"]


async def _refused() -> None:
    raise ConnectionError("refused")

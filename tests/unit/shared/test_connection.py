from typing import Any

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
from stamina.instrumentation import set_on_retry_hooks

from gristmill.shared.connection import (
    connect,
    is_transient,
    notice_waits,
    retrying,
)
from gristmill.shared.errors import NotReplicated, QueueFull

PACKED_PING = [b"*1\r\n$4\r\nPING\r\n"]


@pytest.mark.parametrize(
    "url",
    ["redis://h:1/2", "rediss://u:p@h", "unix:///tmp/s?db=1", "redis://[::1]:6379",
     "redis+sentinel://h/main", "rediss+sentinel://a,b/main"],
)  # fmt: skip
async def test_client_neither_retries_nor_decodes(url: str) -> None:
    client: Any = connect(url, 12.0)
    options = client.connection_pool.connection_kwargs
    assert options["retry"].get_retries() == 0
    assert (options["socket_timeout"], options["decode_responses"]) == (12.0, False)
    assert client.connection_pool.max_connections > 1000
    assert client.connection_pool.make_connection().pack_command("PING") == PACKED_PING
    await client.aclose()


@pytest.mark.parametrize("url", ["redis+cluster://a,b", "rediss+cluster://u:p@h"])
async def test_cluster_client_neither_retries_nor_decodes(url: str) -> None:
    client: Any = connect(url, 12.0)
    for node in client.startup_nodes:
        connection = node.acquire_connection()
        assert connection.retry.get_retries() == client.retry.get_retries() == 0
        assert (connection.socket_timeout, connection.encoder.decode_responses) == (12.0, False)
        assert node.max_connections > 1000
        assert connection.pack_command("PING") == PACKED_PING
    await client.aclose()


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

"""A client whose Redis is not there, refuses it, or goes away: errors in words, warnings on stderr."""

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic import SecretStr
from redis.exceptions import AuthenticationError
from servers import ask, port_of

from gristmill.local.processes import free_port
from gristmill.local.redis_server import running_server
from gristmill.producer import (
    Client,
    GristmillError,
    QueueSettings,
    RedisUnreachable,
    SettingsError,
    SyncClient,
    first_contact,
)
from gristmill.shared.connection import connect

CALLS: dict[str, Callable[[Any], Any]] = {
    "submit": lambda c: c.submit({"prompt": "p"}),
    "submit_many": lambda c: c.submit_many([{"prompt": "p"}]),
    "wait": lambda c: c.wait("0-a"),
    "result": lambda c: c.result("0-a"),
    "status": lambda c: c.status(["0-a"]),
    "cancel": lambda c: c.cancel(["0-a"]),
    "map": lambda c: list(c.map([{"prompt": "p"}])),
    "as_completed": lambda c: list(c.as_completed(["0-a"])),
}


async def _all(results: AsyncIterator[Any]) -> list[Any]:
    return [result async for result in results]


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_contact, "FIRST_ANSWER_S", 0.05)


def error_of(url: str, call: Callable[[Any], Any] = CALLS["submit"]) -> GristmillError:
    """Return the error of a call of a fresh client."""
    with (
        SyncClient(QueueSettings(redis_url=url)) as client,
        pytest.raises(GristmillError) as caught,
    ):
        call(client)
    return caught.value


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_first_call_fails_if_redis_refuses_the_connection(call: Callable[[Any], Any]) -> None:
    error = error_of(f"redis://user:s3cr3t@127.0.0.1:{free_port()}/0", call)
    assert isinstance(error, RedisUnreachable)
    assert str(error).startswith("Redis at redis://127.0.0.1:")
    assert "does not answer" in str(error)
    assert "s3cr3t" not in str(error)


@pytest.mark.usefixtures("short_patience")
def test_the_first_call_fails_if_the_host_has_no_address() -> None:
    error = error_of("redis://no-such-host.invalid:6379/0")
    assert isinstance(error, RedisUnreachable)
    assert "no-such-host.invalid" in str(error)


def test_a_database_that_is_not_there_and_a_refused_login_are_errors_at_once() -> None:
    with running_server() as server:
        port = port_of(server)
        error = error_of(f"redis://127.0.0.1:{port}/99")
        assert isinstance(error, SettingsError)
        assert "has no database of this number" in str(error)
        ask(port, "CONFIG", "SET", "requirepass", "another")
        error = error_of(f"redis://user:s3cr3t@127.0.0.1:{port}/0")
        assert isinstance(error, RedisUnreachable)
        assert "refused user or password" in str(error)


@pytest.mark.usefixtures("short_patience")
async def test_a_later_call_tries_again_and_works_when_redis_is_there() -> None:
    port = free_port()
    async with Client(QueueSettings(redis_url=f"redis://127.0.0.1:{port}/0")) as client:
        calls = [client.status(["0-a"]) for _ in range(20)]
        refused = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, RedisUnreachable) for error in refused)
        with running_server(port=port):
            assert await client.status(["0-a"]) == [("unknown", "")]


async def test_one_error_of_redis_ends_many_waits_and_is_raised_once() -> None:
    """asyncio reports an error that nobody has read when its future is gone."""
    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    with running_server() as server:
        operator = connect(server)
        async with Client(QueueSettings(redis_url=SecretStr(server))) as client:
            ids = await client.submit_many({"prompt": str(n)} for n in range(200))
            waits = [client.as_completed(ids), client.map({"prompt": str(n)} for n in range(200))]
            waiting = [asyncio.ensure_future(_all(wait)) for wait in waits]
            while len(client._waiter._awaited) < 400:
                await asyncio.sleep(0.01)
            await operator.config_set("requirepass", "another")
            await operator.client_kill_filter(_type="normal", skipme=True)
            for error in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(error, AuthenticationError)
            del waits, waiting
        await operator.aclose()
    gc.collect()
    assert reports == []


async def test_a_timeout_counts_while_redis_has_never_answered() -> None:
    async with Client(QueueSettings(redis_url=f"redis://127.0.0.1:{free_port()}/0")) as client:
        with pytest.raises(TimeoutError, match=r"within 0.05 s: Redis does not answer \("):
            await client.wait("0-a", 0.05)


def test_waiting_for_redis_warns_on_stderr_once_and_prints_nothing() -> None:
    code = """
import sys
from gristmill.producer import QueueSettings, SyncClient
with SyncClient(QueueSettings(redis_url=sys.argv[1])) as client:
    client.status(["0-a"])
"""
    started_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", code, f"redis://:s3cr3t@127.0.0.1:{free_port()}/0"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert time.monotonic() - started_s > first_contact.FIRST_ANSWER_S
    assert ended.stdout == ""
    assert ended.stderr.count("waiting for it") == 1
    assert ended.stderr.startswith("Redis does not answer (Error")
    assert ended.stderr.splitlines()[-1].startswith(
        "gristmill.shared.errors.RedisUnreachable: Redis at redis://127.0.0.1:"
    )
    assert "s3cr3t" not in ended.stderr

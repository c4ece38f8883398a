"""No secret of a URL reaches what a process writes: not when it is wrong, not when nobody answers, not in --help."""

import asyncio
import os
import signal

import pytest
from command_line import COMMAND
from servers import ask, port_of
from workers import STUB

from gristmill.local.processes import free_port
from gristmill.local.redis_server import running_server

SECRETS = ("s3cr3tuser", "s3cr3tword", "s3cr3tsentinel")
LOGIN = "s3cr3tuser:s3cr3tword%23@"
PLACES = {
    "redis": "127.0.0.1:{port}/0", "rediss": "127.0.0.1:{port}/0", "unix": "/nowhere/{port}.sock",
    "redis+sentinel": "127.0.0.1:{port}/main", "rediss+sentinel": "127.0.0.1:{port}/main",
    "redis+cluster": "127.0.0.1:{port}", "rediss+cluster": "127.0.0.1:{port}",
}  # fmt: skip
RETRIED = b"redis.waited_for"


def url_of(scheme: str) -> str:
    """Return a URL that is right, and at which nobody answers."""
    place = PLACES[scheme].format(port=free_port())
    sentinel = "?sentinel_username=s3cr3tuser&sentinel_password=s3cr3tsentinel"
    return (
        f"{scheme}://{LOGIN}{place}{sentinel if 'sentinel' in scheme else '?password=s3cr3tword'}"
    )


async def output_of(
    command: tuple[str, ...], url: str, stop_at: bytes | None = None
) -> tuple[int, str]:
    """Run a process until it ends or writes a text; return its exit code and all that it wrote."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | {"REDIS_URL": url, "GRISTMILL_HEALTH_PORT": "0"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout
    written = b""
    while line := await process.stdout.readline():
        written += line
        if stop_at and stop_at in line:
            process.send_signal(signal.SIGTERM)
            stop_at = None
    return await process.wait(), written.decode()


def assert_silent(written: str) -> None:
    assert written
    for secret in (*SECRETS, "s3cr3t", "%23"):
        assert secret not in written, written


@pytest.mark.parametrize("scheme", PLACES)
async def test_wrong_url_is_told_without_its_secrets(scheme: str) -> None:
    url = f"{url_of(scheme)}&s3cr3toption=s3cr3t"
    commands = [(*COMMAND, "status", "a"), (*COMMAND, "status", "a", "--redis-url", url), STUB]
    for code, written in await asyncio.gather(*[output_of(command, url) for command in commands]):
        assert code != 0
        assert "REDIS_URL cannot be read; write" in written
        assert_silent(written)


@pytest.mark.parametrize("scheme", PLACES)
async def test_redis_that_does_not_answer_is_told_without_secrets(scheme: str) -> None:
    url = url_of(scheme)
    (code, said), (_, logged) = await asyncio.gather(
        output_of((*COMMAND, "status", "a"), url), output_of(STUB, url, RETRIED)
    )
    assert code == 3
    assert f"Redis at {scheme}://" in said
    assert f'"url":"{scheme}://' in logged.replace(": ", ":")
    assert_silent(said)
    assert_silent(logged)


async def test_refused_password_is_told_without_it() -> None:
    with running_server() as server:
        ask(port_of(server), "CONFIG", "SET", "requirepass", "another")
        url = f"redis://{LOGIN}127.0.0.1:{port_of(server)}"
        (code, said), (_, logged) = await asyncio.gather(
            output_of((*COMMAND, "status", "a"), url), output_of(STUB, url, RETRIED)
        )
    assert code == 3
    assert "refused user or password" in said
    assert_silent(said)
    assert_silent(logged)


@pytest.mark.parametrize("command", ["", "submit", "worker", "queue stats"])
async def test_help_shows_no_secret(command: str) -> None:
    code, written = await output_of((*COMMAND, *command.split(), "--help"), url_of("redis"))
    assert code == 0
    assert_silent(written)

"""What Redis refuses is told in one line with its remedy: by worker, gateway, steward and commands alike."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from servers import ask, own_address, port_of, with_user

from gristmill.local.redis_server import running_server
from gristmill.shared import cli

PYTHON = (sys.executable, "-m")
COMMAND = (*PYTHON, "gristmill.shared.cli")


@pytest.fixture(scope="module")
def refusing_url() -> Iterator[str]:
    """The URL of a server with users that may do little; it admits only its own machine."""
    options = ("--appendonly", "no", "--bind", "*", "--protected-mode", "yes")
    with running_server(options=options) as url:
        for user, rights in (
            ("few", ("~*", "+ping")),
            ("foreign", ("~other:*", "+@all")),
        ):
            ask(port_of(url), "ACL", "SETUSER", user, "on", ">p", *rights)
        yield url


def refused(url: str, kind: str) -> str:
    """Return the URL with which a server refuses in this way."""
    if kind == "DENIED":
        return url.replace("127.0.0.1", own_address())
    if kind == "database":
        return url.replace("/0", "/99")
    if kind == "cluster":
        return f"redis+cluster://127.0.0.1:{port_of(url)}"
    return with_user(url, kind, "wrong" if kind == "nobody" else "p")


REFUSALS = {
    "nobody": ("refused user or password", 3),
    "few": ("denies this user a right", 3),
    "foreign": ("denies this user a right", 3),
    "DENIED": ("admits only its own machine", 3),
    "database": ("has no database of this number", 2),
    "cluster": ("is no cluster", 2),
}
"""Refusal -> the words of the line and the exit code of a command."""


@pytest.mark.parametrize("kind", REFUSALS)
def test_command_tells_a_refusal_in_one_line(
    refusing_url: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, code = REFUSALS[kind]
    assert cli.run(["queue", "stats", "--redis-url", refused(refusing_url, kind)]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert f" {words} (" in line
    assert "; " in line
    assert len(line) < 400


def test_every_process_ends_at_a_refusal_with_one_line_and_no_traceback(
    refusing_url: str, tmp_path: Path
) -> None:
    """One refusal for each kind of process; all begin at once."""
    started = {
        "database": (*PYTHON, "gristmill.worker"),
        "few": (*COMMAND, "worker"),
        "nobody": (*COMMAND, "gateway", "--port", "0"),
        "foreign": (*COMMAND, "steward"),
    }
    ends = {}
    with ExitStack() as stack:
        processes = {
            kind: stack.enter_context(_started(argv, refused(refusing_url, kind), tmp_path))
            for kind, argv in started.items()
        }
        for kind, process in processes.items():
            out, _ = process.communicate(timeout=60)
            assert "Traceback" not in out
            ends[kind] = (process.returncode, out.splitlines()[-1])
    for kind in ("database", "few"):
        code, line = ends[kind]
        event = orjson.loads(line)
        assert (code, event["event"]) == (2, "redis.refused")
        assert REFUSALS[kind][0] in event["error"]
        assert "REDIS_URL" in event["remedy"]
    for kind in ("nobody", "foreign"):
        code, line = ends[kind]
        assert code == 3
        assert REFUSALS[kind][0] in line
        assert "REDIS_URL" in line


def _started(argv: tuple[str, ...], url: str, folder: Path) -> "subprocess.Popen[str]":
    environment: dict[str, Any] = {
        **os.environ, "REDIS_URL": url, "GRISTMILL_STORAGE_URL": str(folder), "GRISTMILL_HEALTH_PORT": "0",
        "VLLM_URL": "http://127.0.0.1:9",
    }  # fmt: skip
    return subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )

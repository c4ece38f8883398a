"""Arguments that no command can use: each is refused in one line, before anything else happens."""

import os
import shlex
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import COMMAND, CommandLine, Ended


@pytest.fixture
def shell(redis_url: str, tmp_path: Path) -> CommandLine:
    shell = CommandLine(redis_url, f"test-{uuid4().hex[:12]}", tmp_path)
    shell.write("in.jsonl", [{"prompt": "a"}])
    return shell


def run_bytes(shell: CommandLine, *arguments: bytes) -> Ended:
    done = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        env={**shell.environment, "GRISTMILL_STORAGE_URL": str(shell.folder / "storage")},
        cwd=shell.folder,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize(
    "command",
    [
        "status ID", "result ID", "cancel ID", "dead show ID", "dead requeue ID", "dead purge ID --yes",
        "queue weights ID=1", "tenant create ID", "tenant show ID", "submit in.jsonl --run-name ID",
        "submit in.jsonl --batch ID", "submit in.jsonl --queue ID", "batch show ID", "batch cancel ID",
        "batch results ID", "batch list --tenant ID", "batch create in.jsonl --tenant ID",
        "batch create in.jsonl --metadata a=ID", "batch create in.jsonl --endpoint ID",
        "batch retry-failed ID",
    ],
)  # fmt: skip
def test_an_argument_that_is_not_utf8_is_refused(shell: CommandLine, command: str) -> None:
    words = [word.encode().replace(b"ID", b"a\xff") for word in shlex.split(command)]
    done = run_bytes(shell, *words)
    assert (done.code, done.out) == (2, ""), done.err
    assert "Traceback" not in done.err
    assert not (shell.folder / "storage").exists()


@pytest.mark.parametrize("command", ["submit", "batch create"])
def test_a_file_name_that_is_not_utf8_is_read(shell: CommandLine, command: str) -> None:
    name = b"in\xff.jsonl"
    os.rename(shell.folder / "in.jsonl", os.fsencode(shell.folder) + b"/" + name)  # noqa: PTH104  # a bytes path
    done = run_bytes(shell, *command.encode().split(), name)
    assert done.code == 0, done.err
    assert done.out


@pytest.mark.parametrize("name", ["x\ny", "ü|x", "a" * 300, ""])
@pytest.mark.parametrize(
    "command", ["batch create in.jsonl", "batch list", "batch show b", "submit in.jsonl"]
)
def test_a_name_that_no_tenant_can_have_is_refused_at_once(
    shell: CommandLine, command: str, name: str
) -> None:
    storage = str(shell.folder / "storage")
    done = shell.run(*command.split(), "--tenant", name, GRISTMILL_STORAGE_URL=storage)
    assert (done.code, done.out) == (2, ""), done.err
    assert "tenant '" in done.err
    assert "is not allowed; use " in done.err
    assert len(done.err.splitlines()) == 1
    assert not (shell.folder / "storage").exists()

"""The command line on a full disk, with folders in the way of its files, and with closed streams."""

import shlex
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import COMMAND, CommandLine, Ended, SettlingWorker

from gristmill.shared.queue import Queue

FULL = "ulimit -f 1; "
"""No file may be larger than a block, so each long write fails as on a full disk."""


@pytest.fixture
def shell(redis_url: str, tmp_path: Path) -> CommandLine:
    return CommandLine(redis_url, f"test-{uuid4().hex[:12]}", tmp_path)


@pytest.fixture
async def queue(shell: CommandLine) -> AsyncIterator[Queue]:
    async with shell.open_queue() as queue:
        yield queue


def in_shell(shell: CommandLine, before: str, arguments: str, after: str = "") -> Ended:
    """Run a command in `sh`, which can limit the size of files, redirect and close streams."""
    line = f"unset PYTHONUNBUFFERED; {before} exec {shlex.join(COMMAND)} {arguments} {after}"
    done = subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        env=shell.environment,
        cwd=shell.folder,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


async def run_ended(shell: CommandLine, queue: Queue, count: int = 20) -> None:
    """Submit a run whose requests have all ended."""
    shell.write("in.jsonl", [{"prompt": f"say {number}"} for number in range(count)])
    assert shell.run("submit", "in.jsonl", "--run-name", "r").code == 0
    worker = SettlingWorker(queue)
    await worker.register()
    assert len(await worker.settle(count)) == count


async def test_a_full_disk_ends_the_run_with_4_and_the_same_command_resumes_it(
    shell: CommandLine, queue: Queue
) -> None:
    await run_ended(shell, queue)
    command = "submit in.jsonl --run-name r --wait -o out.jsonl"
    full = in_shell(shell, FULL, command)
    assert full.code == 4, full.err
    assert "Traceback" not in full.err
    last = full.err.splitlines()[-1]
    assert last.startswith("gristmill: out.jsonl: File too large; ")
    assert last.endswith(f"resume with: gristmill {command}")
    assert shell.run(*command.split()).code == 0
    assert len({row["custom_id"] for row in shell.rows("out.jsonl")}) == 20


@pytest.mark.parametrize("command", ["submit in.jsonl --run-name r --wait", "queue stats"])
async def test_a_full_stdout_ends_with_4(shell: CommandLine, queue: Queue, command: str) -> None:
    await run_ended(shell, queue)
    full = in_shell(shell, "", command, ">/dev/full")
    assert full.code == 4, full.err
    assert "Traceback" not in full.err
    last = full.err.splitlines()[-1]
    assert last.startswith("gristmill: stdout: No space left on device")
    assert ("resume with: gristmill submit in.jsonl --run-name r --wait" in last) == (
        "submit" in command
    )


def test_a_full_folder_for_the_copy_of_stdin_is_named(shell: CommandLine) -> None:
    shell.write("in.jsonl", [{"prompt": "a" * 40}] * 500)
    full = in_shell(shell, f"export TMPDIR={shell.folder};{FULL}", "submit -", "<in.jsonl")
    assert (full.code, full.out) == (4, ""), full.err
    (line,) = full.err.splitlines()
    assert line.startswith(f"gristmill: {shell.folder}/gristmill-")
    assert "File too large; make room there, or name another folder with TMPDIR" in line


@pytest.mark.parametrize("option", ["", "--force"])
@pytest.mark.parametrize("name", ["out.run", "out.run.draft"])
def test_a_folder_in_the_way_of_the_run_record_is_named(
    shell: CommandLine, name: str, option: str
) -> None:
    shell.write("in.jsonl", [{"prompt": "a"}])
    (shell.folder / name).mkdir()
    done = shell.run("submit", "in.jsonl", "--wait", "-o", "out", *option.split())
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert f"gristmill: {name}" in done.err.splitlines()[-1]
    assert {path.name for path in shell.folder.iterdir()} == {"in.jsonl", name}


@pytest.mark.parametrize("command", ["submit -", "batch create -"])
def test_a_closed_stdin_is_told(shell: CommandLine, command: str) -> None:
    done = in_shell(shell, "export GRISTMILL_STORAGE_URL=storage;", command, "<&-")
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err == ("gristmill: stdin is closed; pipe a JSONL file into it, or name the file\n")


def test_a_closed_stdout_is_told(shell: CommandLine) -> None:
    shell.write("in.jsonl", [{"prompt": "a"}])
    done = in_shell(shell, "", "submit in.jsonl --wait", ">&-")
    assert done.code == 2, done.err
    assert "stdout is closed; name a file for the rows with -o" in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    "record",
    [
        b'{"run":"r","queue":"q","input_bytes":1,"input_digest":"d","fields":7}',
        b'{"run":null,"queue":"q","input_bytes":1,"input_digest":"d","fields":{}}',
        b"[1]",
        b"7",
        b"\xff",
    ],
)
def test_a_damaged_run_record_is_told(shell: CommandLine, record: bytes) -> None:
    shell.write("in.jsonl", [{"prompt": "a"}])
    (shell.folder / "out.run").write_bytes(record)
    done = shell.run("submit", "in.jsonl", "--wait", "-o", "out")
    assert done.code == 2, done.err
    assert "gristmill: out.run cannot be read (" in done.err
    assert "begin a new run with --force" in done.err

"""`gristmill submit` as its users run it: a subprocess, a real server, a worker that settles."""

import asyncio
import contextlib
import os
import pty
import re
import signal
import termios
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from command_line import COMMAND, CommandLine, SettlingWorker, ended, interrupt
from queues import end_lease

from gristmill.shared.queue import Queue


@pytest.fixture
def shell(redis_url: str, tmp_path: Path) -> CommandLine:
    return CommandLine(redis_url, f"test-{uuid4().hex[:12]}", tmp_path)


@pytest.fixture
async def queue(shell: CommandLine) -> AsyncIterator[Queue]:
    async with shell.open_queue() as queue:
        yield queue


def openai_lines(count: int) -> list[dict[str, object]]:
    return [
        {
            "custom_id": f"request-{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"say {number}"},
        }
        for number in range(1, count + 1)
    ]


async def test_cut_answers_are_told(shell: CommandLine, queue: Queue) -> None:
    shell.write("in.jsonl", openai_lines(3))
    command = ("submit", "in.jsonl", "--wait", "-o", "out.jsonl", "--json")

    def answer(_: str, body: Any) -> dict[str, Any]:
        reason = "stop" if body["prompt"] == "say 2" else "length"
        return {"choices": [{"text": "a", "finish_reason": reason}]}

    async with SettlingWorker(queue, answer).running():
        done = await shell.finish(*command)
    again = shell.run(*command)  # the rows are there already
    for told in (done, again):
        assert told.code == 0
        assert "2 of 3 answers were cut at their limit of tokens" in told.err
        assert (told.rows[0]["failed"], told.rows[0]["cut"]) == (0, 2)


async def test_submit_writes_one_row_in_openai_format_for_each_line(
    shell: CommandLine, queue: Queue
) -> None:
    shell.write("in.jsonl", openai_lines(300))
    async with SettlingWorker(queue).running():
        done = await shell.finish("submit", "in.jsonl", "--wait", "-o", "out.jsonl", "--json")
    assert done.code == 0, done.err
    summary = done.rows[0]
    assert (summary["total"], summary["succeeded"], summary["output_tokens"]) == (300, 300, 900)
    rows = {row["custom_id"]: row for row in shell.rows("out.jsonl")}
    assert rows.keys() == {f"request-{number}" for number in range(1, 301)}
    row = rows["request-7"]
    assert row["id"] == f"batch_req_{summary['run']}-7"
    assert row["response"]["request_id"] == f"{summary['run']}-7"
    assert row["response"]["status_code"] == 200
    assert row["response"]["body"]["choices"] == [{"text": "say 7"}]
    assert row["error"] is None
    again = shell.run("submit", "in.jsonl", "--wait", "-o", "out.jsonl")
    assert (again.code, "300 rows are there already (0 failed)" in again.err) == (0, True)
    assert len(shell.rows("out.jsonl")) == 300


async def test_a_failed_request_has_its_answer_in_its_row_and_the_exit_code_is_1(
    shell: CommandLine, queue: Queue
) -> None:
    shell.write("in.jsonl", [{"prompt": "fine"}, {"prompt": "fail"}])
    async with SettlingWorker(queue).running():
        done = await shell.finish("submit", "in.jsonl", "--wait")
    assert done.code == 1
    rows = {row["custom_id"]: row for row in done.rows}
    assert rows["2"]["response"]["status_code"] == 400
    assert rows["2"]["response"]["body"] == {"error": {"message": "told to fail"}}


async def test_failures_are_counted_with_one_example(shell: CommandLine, queue: Queue) -> None:
    lines = [
        {"custom_id": "a", "body": {"prompt": "fine"}},
        {"custom_id": "b", "body": {"prompt": "fail"}},
    ]
    shell.write("in.jsonl", lines)
    async with SettlingWorker(queue).running():
        done = await shell.finish("submit", "in.jsonl", "--wait", "-o", "out.jsonl")
    told = "1 of 2 failed, e.g. line 2 (custom_id b): HTTP 400: told to fail; see out.jsonl"
    assert (done.code, done.err.splitlines()[-1]) == (1, told)
    again = shell.run("submit", "in.jsonl", "--wait", "-o", "out.jsonl")
    assert (again.code, again.err.splitlines()[-1]) == (1, told)


async def test_a_bad_line_is_an_example_of_a_failure(shell: CommandLine, queue: Queue) -> None:
    shell.write("in.jsonl", [b"null", {"prompt": "a"}])
    async with SettlingWorker(queue).running():
        done = await shell.finish("submit", "in.jsonl", "--wait", "--lenient")
    assert done.code == 1
    last = done.err.splitlines()[-1]
    assert last.startswith("1 of 2 failed, e.g. line 1: HTTP 400: line 1: it is null")


@pytest.mark.parametrize("arguments", ["", "--wait", "--wait -o out.jsonl"])
def test_another_input_under_the_name_of_a_run_is_told_by_its_line(
    shell: CommandLine, arguments: str
) -> None:
    shell.write("in.jsonl", [{"prompt": "a"}])
    assert shell.run("submit", "in.jsonl", "--run-name", "R1").code == 0
    shell.write("in.jsonl", [{"prompt": "other"}])
    done = shell.run("submit", "in.jsonl", "--run-name", "R1", *arguments.split())
    assert (done.code, done.out) == (2, ""), done.err
    last = done.err.splitlines()[-1]
    assert "line 1 (request R1-1) differs from line 1 of an earlier run R1" in last
    assert "name another run with --run-name" in last
    assert "items[" not in done.err
    assert list(shell.folder.iterdir()) == [shell.folder / "in.jsonl"]


async def test_stdin_is_read_and_rows_go_to_stdout(shell: CommandLine, queue: Queue) -> None:
    done = shell.run("submit", "-", "--run-name", "nightly", stdin=b'{"prompt": "a"}\r\n\r\n')
    assert (done.code, done.out) == (0, "nightly\n")
    worker = SettlingWorker(queue)
    await worker.register()
    assert await worker.settle(10) == ["nightly-1"]
    done = shell.run("submit", "-", "--run-name", "nightly", "--wait", stdin=b'{"prompt": "a"}\n')
    assert [row["custom_id"] for row in done.rows] == ["1"]


async def test_options_are_defaults_that_a_line_overrides(shell: CommandLine, queue: Queue) -> None:
    shell.write(
        "in.jsonl",
        [
            {"prompt": "a"},
            {"body": {"prompt": "b"}, "priority": "high", "tenant": "mine", "id": "own"},
        ],
    )
    done = shell.run(
        "submit", "in.jsonl", "--priority", "low", "--tenant", "theirs", "--endpoint", "/tokenize",
        "--max-attempts", "7", "--batch", "group", "--deadline-s", "900", "--run-name", "r",
    )  # fmt: skip
    assert done.code == 0, done.err
    await queue.register("worker", {})
    claim = await queue.claim("worker", "nonce", 10)
    facts = [
        (item.id, item.record.priority, item.record.tenant, item.record.endpoint)
        for item in claim.claimed
    ]
    assert facts == [("r-2", "high", "mine", "/tokenize"), ("r-1", "low", "theirs", "/tokenize")]
    record = claim.claimed[1].record
    assert (record.max_attempts, record.batch) == (7, "group")
    assert record.deadline_ms == record.enqueued_ms + 900_000
    assert orjson.loads(claim.claimed[0].record.metadata) == {"custom_id": "own"}


BAD_LINES = {
    b"[1,2]": "it is an array",
    b"null": "it is null",
    b'"x"': "it is a string",
    b'{"prompt": "a"': "it is not JSON",
    b'{"prompt": "\xff"}': "byte 0xff at position 13",
    b'{"prompt": "a\x00b"}': "it is not JSON",
    b'{"prompt": "\\ud800"}': "lone surrogate",
    b'{"prompt": NaN}': "NaN at column 12",
    b"": "it is empty",
    b'{"body": {"prompt": "a"}, "priorty": "high"}': "unknown field 'priorty'",
    b'{"body": {"prompt": "a"}, "endpoint": "/v1/nothing"}': "unknown endpoint '/v1/nothing'",
    b'{"prompt": "a", "stream": true}': "stream",
}


@pytest.mark.parametrize("bad", BAD_LINES)
async def test_one_bad_line_of_twenty_refuses_the_file_and_names_the_line(
    shell: CommandLine, queue: Queue, bad: bytes
) -> None:
    shell.write("in.jsonl", [*[{"prompt": "a"}] * 6, bad, *[{"prompt": "a"}] * 13])
    done = shell.run("submit", "in.jsonl", "--wait", "-o", "out.jsonl")
    assert done.code == 2
    (line,) = [line for line in done.err.splitlines() if line.startswith("  line 7: ")]
    assert BAD_LINES[bad] in line
    assert "submitted" not in (await queue.stats()).counters
    assert list(shell.folder.iterdir()) == [shell.folder / "in.jsonl"]


async def test_fields_without_effect_are_reported_or_refused(shell: CommandLine) -> None:
    shell.write("in.jsonl", [{"prompt": "a"}, {"prompt": "a", "max_token": 3}])
    warned = shell.run("submit", "in.jsonl")
    assert warned.code == 0
    assert "1 of 2 lines have fields without effect:\n  line 2: the engine ignores these fields" in warned.err  # fmt: skip
    assert "'max_token' (did you mean 'max_tokens'?)" in warned.err
    refused = shell.run("submit", "in.jsonl", "--unknown-fields", "refuse")
    assert refused.code == 2
    assert "1 of 2 lines of in.jsonl cannot be submitted, so nothing was submitted:\n  line 2: the engine" in refused.err  # fmt: skip


async def test_a_field_without_effect_of_all_rows_is_reported_once(shell: CommandLine) -> None:
    shell.write("in.jsonl", [{"text": f"{number}"} for number in range(20)])
    shell.write("params.json", [{"max_token": 3}])
    told = shell.run("submit", "in.jsonl", "--prompt", "{text}", "--params", "params.json")
    assert told.code == 0, told.err
    assert told.err.count("'max_token' (did you mean 'max_tokens'?)") == 1
    assert "--params has fields without effect: the engine ignores these fields" in told.err


async def test_lenient_makes_one_error_row_of_one_bad_line(
    shell: CommandLine, queue: Queue
) -> None:
    lines = [*[{"prompt": "a"}] * 6, b'{"custom_id": "odd", "body": 5}', *[{"prompt": "a"}] * 13]
    shell.write("in.jsonl", lines)
    async with SettlingWorker(queue).running():
        done = await shell.finish("submit", "in.jsonl", "--wait", "--lenient", "-o", "out.jsonl")
    assert done.code == 1
    rows = shell.rows("out.jsonl")
    failed = [row for row in rows if row["response"]["status_code"] == 400]
    assert (len(rows), len(failed)) == (20, 1)
    assert failed[0]["custom_id"] == "odd"
    error = failed[0]["response"]["body"]["error"]
    assert error["code"] == "invalid_request"
    assert "line 7: " in error["message"]


@pytest.mark.parametrize("command", ["submit", "submit --lenient", "batch create"])
@pytest.mark.parametrize(
    ("start", "found"),
    [
        (b"PAR1\x15\x04\x15", "a Parquet file; convert it, with pandas"),
        (b"\x1f\x8b\x08", "compressed with gzip; decompress it first: gunzip FILE"),
        (b"id,text\n1,hello\n", "a CSV file; convert it, with pandas"),
        (b'[\n{"prompt": "a"}\n]\n', "one JSON array; write each element on a line of its own"),
    ],
)
async def test_a_file_of_another_format_is_named(
    shell: CommandLine, queue: Queue, command: str, start: bytes, found: str
) -> None:
    (shell.folder / "in.jsonl").write_bytes(start)
    storage = str(shell.folder / "storage")
    done = shell.run(*command.split(), "in.jsonl", GRISTMILL_STORAGE_URL=storage)
    assert (done.code, done.out) == (2, "")
    assert f" is {found}" in done.err
    assert "line 1" not in done.err
    assert "submitted" not in (await queue.stats()).counters
    assert not [path for path in shell.folder.rglob("storage/**/*") if path.is_file()]


def test_bom_crlf_and_blank_last_lines_are_no_error(shell: CommandLine) -> None:
    shell.write("in.jsonl", [b'\xef\xbb\xbf{"prompt": "a"}\r', b'{"prompt": "b"}\r', b"\r", b""])
    done = shell.run("submit", "in.jsonl", "--json")
    assert (done.code, done.rows[0]["submitted"]) == (0, 2)


def test_duplicate_custom_ids_name_both_lines(shell: CommandLine) -> None:
    lines = openai_lines(20)
    lines[16]["custom_id"] = "request-3"
    shell.write("in.jsonl", lines)
    done = shell.run("submit", "in.jsonl")
    assert done.code == 2
    assert "line 17: custom_id 'request-3' stands on line 3 too" in done.err
    assert "1 of 20 lines of in.jsonl cannot be submitted" in done.err


def test_at_most_ten_bad_lines_are_shown_and_the_others_counted(shell: CommandLine) -> None:
    shell.write("in.jsonl", [b"null"] * 25)
    done = shell.run("submit", "in.jsonl")
    assert done.err.count("it is null") == 10
    assert "and 15 more" in done.err


@pytest.mark.parametrize("num_bytes", [1_000, 5_000, 200_000])
def test_a_body_over_the_limit_is_refused_with_both_numbers(
    shell: CommandLine, num_bytes: int
) -> None:
    shell.write("in.jsonl", [{"prompt": "x" * num_bytes}, {"prompt": "y"}])
    done = shell.run("submit", "in.jsonl", GRISTMILL_MAX_REQUEST_BYTES="1024")
    is_over = num_bytes > 1_000
    assert done.code == (2 if is_over else 0)
    assert ("line 1: " in done.err and "GRISTMILL_MAX_REQUEST_BYTES" in done.err) == is_over


@pytest.mark.parametrize(
    ("name", "value"), [("tenant", ""), ("batch", "a b"), ("endpoint", "/v1/nowhere")]
)
def test_an_option_that_fits_no_line_is_refused_once(
    shell: CommandLine, name: str, value: str
) -> None:
    shell.write("in.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    done = shell.run("submit", "in.jsonl", "--lenient", f"--{name}", value)
    assert (done.code, done.out) == (2, "")
    assert "no line can have these options: " in done.err
    assert name in done.err
    assert "line 1" not in done.err


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("submit --force", "in.run"),
        ("submit --force", "link"),
        ("submit --force", "in"),  # beside it lies in.run
        ("batch create", "in.run"),
        ("batch create", "link"),
    ],
)
def test_the_input_is_no_output(shell: CommandLine, command: str, output: str) -> None:
    """With --force the input had been emptied, and nothing run."""
    shell.write("in.run", [{"prompt": "a"}])
    (shell.folder / "link").symlink_to("in.run")
    before = (shell.folder / "in.run").read_bytes()
    done = shell.run(*command.split(), "in.run", "--wait", "-o", output)
    assert (done.code, "is the input itself" in done.err) == (2, True), done.err
    assert (shell.folder / "in.run").read_bytes() == before


def test_an_output_that_is_no_interrupted_run_is_kept_unless_forced(shell: CommandLine) -> None:
    shell.write("in.jsonl", [b"null"])
    (shell.folder / "out.jsonl").write_text("precious\n")
    done = shell.run("submit", "in.jsonl", "--wait", "-o", "out.jsonl")
    assert done.code == 2
    assert "--force" in done.err
    assert (shell.folder / "out.jsonl").read_text() == "precious\n"


async def _interrupted_after(
    shell: CommandLine, queue: Queue, num_rows: int, number: int = signal.SIGINT
) -> None:
    """Run the command until that many rows are written, then signal it."""
    process = await shell.start("submit", "in.jsonl", "--wait", "-o", "out.jsonl", "--window", "64")
    out = shell.folder / "out.jsonl"
    worker = SettlingWorker(queue)
    await worker.register()
    while not out.exists() or out.read_bytes().count(b"\n") < num_rows:
        await worker.settle(8)
        await asyncio.sleep(0)
    stopped = await interrupt(process, number)
    if number == signal.SIGINT:
        assert stopped.code == 130, stopped.err
        assert (
            "resume with: gristmill submit in.jsonl --wait -o out.jsonl --window 64" in stopped.err
        )
    else:
        assert stopped.code == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
async def test_a_run_interrupted_three_times_ends_with_each_line_exactly_once(
    shell: CommandLine, queue: Queue, number: int
) -> None:
    shell.write("in.jsonl", openai_lines(400))
    for num_rows in (200, 260, 320):
        await _interrupted_after(shell, queue, num_rows, number)
    async with SettlingWorker(queue).running():
        done = await shell.finish(
            "submit", "in.jsonl", "--wait", "-o", "out.jsonl", "--window", "64"
        )
    assert done.code == 0, done.err
    assert "resumed" in done.err
    ids = [row["custom_id"] for row in shell.rows("out.jsonl")]
    assert sorted(ids) == sorted(f"request-{number}" for number in range(1, 401))
    assert (await queue.stats()).counters["succeeded"] == 400
    assert (await queue.stats()).counters["submitted"] == 400
    assert shell.run("queue", "audit").code == 0


async def test_who_waits_is_told_when_no_worker_is_left(shell: CommandLine, queue: Queue) -> None:
    shell.write("in.jsonl", openai_lines(3))
    await queue.register("dead", {})
    await end_lease(queue, "dead")
    process = await shell.start("submit", "in.jsonl", "--wait", "-o", "out.jsonl")
    assert process.stderr is not None
    told = []
    async for line in process.stderr:
        told.append(line.decode())
        if "in flight" in told[-1]:
            break
    start = "start one: gristmill worker --queue"
    assert [line for line in told if start in line] == [
        f"no worker of queue {shell.queue} is alive; {start} {shell.queue} -- --model MODEL\n"
    ]
    async with SettlingWorker(queue).running():
        assert (await ended(process)).code == 0


@pytest.mark.parametrize("columns", [60, 80, 120])
async def test_a_terminal_shows_a_bar_and_the_counts(
    shell: CommandLine, queue: Queue, columns: int
) -> None:
    shell.write("in.jsonl", openai_lines(50))
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    async with SettlingWorker(queue).running():
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "submit", "in.jsonl", "--wait", "-o", "out.jsonl",
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=shell.folder,
            env={**shell.environment, "TERM": "xterm", "NO_COLOR": "1"},
        )  # fmt: skip
        os.close(theirs)
        shown = await asyncio.to_thread(_all_of, ours)
    assert await process.wait() == 0, shown
    lines = re.sub("\x1b\\[[?0-9;]*[A-Za-z]", "", shown).replace("\r", "\n").split("\n")
    bars = [line for line in lines if line.startswith("\u2501")]
    counts = [line for line in lines if line.startswith("50/50 finished (0 failed), 0 in flight")]
    assert bars[-1] == "\u2501" * 40 + " 100%"
    assert counts
    assert max(map(len, bars + counts)) <= columns


def _all_of(terminal: int) -> str:
    """Read a terminal until the process at its other side has ended."""
    read = b""
    with os.fdopen(terminal, "rb", buffering=0) as stream, contextlib.suppress(OSError):
        while chunk := stream.read(65_536):
            read += chunk
    return read.decode()


async def test_a_torn_last_row_is_written_again(shell: CommandLine, queue: Queue) -> None:
    shell.write("in.jsonl", openai_lines(100))
    await _interrupted_after(shell, queue, 50)
    out = shell.folder / "out.jsonl"
    out.write_bytes(out.read_bytes()[:-25])
    async with SettlingWorker(queue).running():
        done = await shell.finish(
            "submit", "in.jsonl", "--wait", "-o", "out.jsonl", "--window", "64"
        )
    assert done.code == 0, done.err
    assert len({row["custom_id"] for row in shell.rows("out.jsonl")}) == 100


async def test_resuming_with_another_input_is_refused(shell: CommandLine, queue: Queue) -> None:
    shell.write("in.jsonl", openai_lines(100))
    await _interrupted_after(shell, queue, 10)
    shell.write("in.jsonl", openai_lines(101))
    done = shell.run("submit", "in.jsonl", "--wait", "-o", "out.jsonl", "--window", "64")
    assert done.code == 2
    assert "the input has changed" in done.err


async def test_a_second_process_may_not_write_the_same_output(
    shell: CommandLine, queue: Queue
) -> None:
    shell.write("in.jsonl", openai_lines(10))
    first = await shell.start("submit", "in.jsonl", "--wait", "-o", "out.jsonl")
    while not (shell.folder / "out.jsonl.run").exists():  # another process
        await asyncio.sleep(0.01)
    second = await shell.finish("submit", "in.jsonl", "--wait", "-o", "out.jsonl")
    assert second.code == 2
    assert "another process is writing" in second.err
    async with SettlingWorker(queue).running():
        assert (await ended(first)).code == 0


async def test_a_run_without_wait_is_collected_later(shell: CommandLine, queue: Queue) -> None:
    shell.write("in.jsonl", openai_lines(50))
    run = shell.run("submit", "in.jsonl").out.strip()
    worker = SettlingWorker(queue)
    await worker.register()
    while await worker.settle(16):
        pass
    done = shell.run("submit", "in.jsonl", "--wait", "-o", "out.jsonl", "--run-name", run)
    assert done.code == 0, done.err
    assert len(shell.rows("out.jsonl")) == 50
    assert (await queue.stats()).counters["submitted"] == 50


async def test_the_name_of_a_run_cannot_be_used_for_another_input(shell: CommandLine) -> None:
    shell.write("in.jsonl", openai_lines(5))
    assert shell.run("submit", "in.jsonl", "--run-name", "mine").code == 0
    shell.write("in.jsonl", [{"prompt": "other"}])
    done = shell.run("submit", "in.jsonl", "--run-name", "mine")
    assert done.code == 2
    assert "mine-1" in done.err


async def test_a_model_that_nobody_serves_is_refused_before_anything_is_submitted(
    shell: CommandLine, queue: Queue
) -> None:
    await queue.register("worker", {"models": "served", "endpoints": "/v1/completions"})
    good, bad = ({"prompt": "a", "model": model} for model in ("served", "wrong"))
    shell.write("in.jsonl", [good, bad])
    done = shell.run("submit", "in.jsonl")
    assert (done.code, done.out) == (2, "")
    assert "line 2: no worker of queue" in done.err
    assert "serves model 'wrong'; they serve served" in done.err
    assert (await queue.stats()).counters.get("queued", 0) == 0
    done = shell.run("submit", "in.jsonl", GRISTMILL_CHECK_MODELS="false")
    assert done.code == 0, done.err
    assert (await queue.stats()).counters["queued"] == 2

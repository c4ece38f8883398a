"""`gristmill run` as its users run it: subprocesses, a true Redis, stub engines in its workers."""

import asyncio
import os
import signal
from pathlib import Path
from uuid import uuid4

import orjson
import pandas as pd
import pytest
from command_line import CommandLine, SettlingWorker, ended, interrupt
from own_runs import FLAGS, OwnRuns, all_gone, family_of
from servers import ask

from gristmill.shared.connection import connect

pytestmark = pytest.mark.timeout(120)

TABLE = ("run", "in.parquet", "-o", "out.parquet", "--prompt", "{text}")
SLOW = {"STUB_TOKEN_DELAY_S": "0.01", "MAX_IN_FLIGHT": "20", "GRISTMILL_LOG_LEVEL": "INFO"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def own(folder: Path) -> OwnRuns:
    """A machine without a Redis."""
    return OwnRuns("", "", folder)


@pytest.fixture
def slow(folder: Path) -> OwnRuns:
    """The same, with an engine that leaves time to end it."""
    return OwnRuns("", "", folder, SLOW)


@pytest.fixture
def held(folder: Path) -> OwnRuns:
    """The same, with an engine that answers 150 requests and holds the others."""
    return OwnRuns("", "", folder, SLOW | {"STUB_MAX_ANSWERS": "150"})


def refusal_of(port: int) -> str:
    """Return what a server without its password answers."""
    with pytest.raises(RuntimeError) as refused:
        ask(port, "KEYS", "*")
    return str(refused.value)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_one_command_runs_a_table_and_a_finished_run_starts_no_engine(own: OwnRuns) -> None:
    own.write_table(300)
    done = await own.finish(*TABLE, *FLAGS)
    assert done.code == 0, done.err
    for told in (
        "answers may be as long as the model allows; limit them with --max-tokens",
        "starting a Redis of its own",
        "running: gristmill worker --devices all -- --model stub",
        "log: out.parquet.log",
        "300/300 finished (0 failed)",
        "output tokens",
    ):
        assert told in done.err
    frame = pd.read_parquet(own.folder / "out.parquet")
    assert list(frame["n"]) == list(range(300))
    assert [answer[:6].split()[0] for answer in frame["answer"]] == ["row"] * 300
    assert names(own.folder) == {"in.parquet", "out.parquet", "out.parquet.log", "out.parquet.run"}
    again = own.run(*TABLE, *FLAGS, "--max-num-seqs", "7")
    assert (again.code, "has finished: 300 rows are there already" in again.err) == (0, True)
    assert "running:" not in again.err
    for flags, told in [
        (("--", "--model", "other"), "model after -- was 'stub', and is 'other' now"),
        ((*FLAGS, "--revision", "v2"), "revision after -- was not given, and is 'v2' now"),
    ]:
        refused = own.run(*TABLE, *flags)
        assert (refused.code, told in refused.err) == (2, True), refused.err


async def test_a_killed_run_leaves_no_process_and_resumes(held: OwnRuns, slow: OwnRuns) -> None:
    num_rows = 400
    slow.write_table(num_rows)
    process = await held.start(*TABLE, *FLAGS)
    await held.until_written(process, 150)
    family = family_of(process)
    (server,) = [each for each in family if "worker" not in each.cmdline()]
    (port,) = {each.laddr.port for each in server.net_connections("tcp") if each.status == "LISTEN"}
    assert "-NOAUTH" in refusal_of(port)  # other users of the machine
    process.kill()
    await ended(process)
    assert slow.num_written() == 150
    assert await all_gone(family)
    done = await slow.finish(*TABLE, "--json", *FLAGS)
    assert done.code == 0, done.err
    assert "queue embedded, resumed" in done.err
    num_earlier = done.rows[0]["finished_earlier"]
    assert num_earlier == 150
    ran = [event["id"] for event in slow.logged("request.completed")]
    assert len(ran) == len(set(ran)) == num_rows - num_earlier
    frame = pd.read_parquet(slow.folder / "out.parquet")
    assert list(frame["n"]) == list(range(num_rows))
    assert frame["error"].isna().all()


async def test_the_workers_of_a_run_do_not_end_by_themselves(folder: Path) -> None:
    ends_at_once = {"GRISTMILL_UNTIL_EMPTY": "true", "GRISTMILL_FIRST_REQUEST_TIMEOUT_S": "0"}
    own = OwnRuns("", "", folder, ends_at_once | {"STUB_TOKEN_DELAY_S": "0.2"})
    own.write_table(20)
    done = await own.finish(*TABLE, *FLAGS)
    assert done.code == 0, done.err


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core an engine")
async def test_a_killed_run_leaves_none_of_several_engines(slow: OwnRuns) -> None:
    slow.write_table(4000)
    (slow.folder.parent / "broken").touch()
    several = OwnRuns("", "", slow.folder, SLOW | {"STUB_FOLDER": str(slow.folder.parent)})
    process = await several.start(*TABLE, "--engines", "2", *FLAGS)
    await several.until_written(process, 100)
    family = family_of(process)
    assert len(family) >= 4  # Redis, the parent, two workers
    process.kill()
    await ended(process)
    assert await all_gone(family)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_run_that_is_ended_says_how_it_resumes(
    held: OwnRuns, number: int, code: int
) -> None:
    lines = [{"prompt": f"row {number}"} for number in range(2000)]
    held.write("in.jsonl", lines)
    output = held.folder / "out.jsonl"
    command = ("run", "in.jsonl", "-o", "out.jsonl")
    process = await held.start(*command, *FLAGS, "--hf-token", "secret")
    while not (output.exists() and output.read_bytes().count(b"\n") > 100):
        assert process.returncode is None
        await asyncio.sleep(0.01)
    family = family_of(process)
    done = await interrupt(process, number)
    assert done.code == code, done.err
    told = "interrupted; written rows stay; resume with: gristmill run in.jsonl -o out.jsonl -- --model stub"
    assert told in done.err
    assert " --hf-token '***'; put the value of --hf-token back in\n" in done.err
    assert "secret" not in done.err
    assert await all_gone(family)


async def test_a_worker_that_cannot_start_is_quoted_and_leaves_no_run(folder: Path) -> None:
    broken = OwnRuns("", "", folder, {"STUB_BROKEN": "1"})
    broken.write_table(3)
    done = await broken.finish(*TABLE, *FLAGS)
    assert done.code == 4
    assert "gristmill: the worker ended with exit code 1: " in done.err
    assert "the stub engine was told not to start; its log: out.parquet.log\n" in done.err
    assert '"level"' not in done.err
    assert "Traceback" not in done.err
    assert names(folder) == {"in.parquet", "out.parquet.log"}
    done = await OwnRuns("", "", folder).finish(*TABLE, "--", "--model", "other")
    assert done.code == 0, done.err


async def test_an_engine_that_fails_everything_is_told(folder: Path) -> None:
    full = OwnRuns("", "", folder, {"STUB_FAULT": "No space left on device"})
    full.write_table(300)
    process = await full.start(*TABLE, *FLAGS)
    assert process.stderr
    told = "every worker of queue embedded is braked: "
    said = ""
    while told not in said:
        said = (await process.stderr.readline()).decode()
        assert said
    assert "requests failed with 500 InternalServerError: No space left on device" in said
    assert said.endswith("; see out.parquet.log\n")
    assert (await interrupt(process)).code == 130


@pytest.mark.parametrize("part", ["worker", pytest.param("Redis", marks=pytest.mark.long)])
async def test_a_part_that_dies_ends_the_run(held: OwnRuns, part: str) -> None:
    held.write_table(4000)
    process = await held.start(*TABLE, *FLAGS)
    await held.until_written(process, 100)
    family = family_of(process)
    (victim,) = [each for each in family if ("worker" in each.cmdline()) == (part == "worker")]
    victim.kill()
    done = await ended(process)
    assert done.code == 4, done.err
    name = "the worker" if part == "worker" else "the embedded Redis"
    assert f"gristmill: {name} was killed by SIGKILL; the end of its log" in done.err
    assert done.err.endswith("Written rows stay; the same command resumes the run.\n")
    assert await all_gone(family)


async def test_with_a_redis_alone_its_workers_run_the_requests(
    redis_url: str, folder: Path
) -> None:
    shell = CommandLine(redis_url, f"test-{uuid4().hex[:12]}", folder)
    shell.write("in.jsonl", [{"prompt": "a"}, {"prompt": "fail"}])
    async with shell.open_queue() as queue, SettlingWorker(queue).running():
        done = await shell.finish("run", "in.jsonl", "-o", "out.jsonl")
    assert (done.code, len(shell.rows("out.jsonl"))) == (1, 2), done.err
    assert "starting" not in done.err
    again = shell.run("submit", "in.jsonl", "--wait", "-o", "out.jsonl")
    assert (again.code, "already (1 failed); --force runs all rows again\n" in again.err) == (
        1,
        True,
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [((), ", resumed"), pytest.param(("--force",), "300 rows", marks=pytest.mark.long)],
    ids=["resume", "force"],
)
async def test_own_workers_on_a_redis_have_a_queue_that_is_gone_at_the_end(
    redis_url: str, folder: Path, options: tuple[str, ...], told: str
) -> None:
    variables = SLOW | {"GRISTMILL_LEASE_S": "2"}
    shell = OwnRuns(redis_url, "", folder, variables)
    held = OwnRuns(redis_url, "", folder, variables | {"STUB_MAX_ANSWERS": "150"})
    shell.write_table(300)
    redis = connect(redis_url)
    process = await held.start(*TABLE, *FLAGS)
    await held.until_written(process, 150)
    name = orjson.loads((folder / "out.parquet.run").read_bytes())["queue"]
    family = family_of(process)
    if options:
        process.kill()
        await ended(process)
    else:
        kept = f"queue {name} stays for the resume, and gristmill queue purge --queue {name} deletes it"
        assert f"interrupted; {kept}; written rows stay; resume" in (await interrupt(process)).err
    assert await all_gone(family)
    assert [key async for key in redis.scan_iter(f"*{name}*")]
    done = await shell.finish(*TABLE, *options, *FLAGS)
    assert done.code == 0, done.err
    assert f", queue {name}" in done.err
    assert told in done.err
    assert len(pd.read_parquet(folder / "out.parquet")) == 300
    assert [key async for key in redis.scan_iter(f"*{name}*")] == []
    await redis.aclose()

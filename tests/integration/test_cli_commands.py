"""Every command but `submit`, and what all commands do with errors, as real processes."""

import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import orjson
import pytest
from click.testing import CliRunner
from command_line import CommandLine, SettlingWorker, ended, interrupt
from queues import clear_directory
from servers import ask

from gristmill.local.processes import free_port
from gristmill.local.redis_server import running_server
from gristmill.shared.cli import gristmill
from gristmill.shared.queue import Queue
from gristmill.shared.redis_url import parse
from gristmill.shared.request import Request


@pytest.fixture
def shell(redis_url: str, tmp_path: Path) -> CommandLine:
    return CommandLine(redis_url, f"test-{uuid4().hex[:12]}", tmp_path)


@pytest.fixture
async def queue(shell: CommandLine) -> AsyncIterator[Queue]:
    async with shell.open_queue() as queue:
        yield queue


async def submit(queue: Queue, *ids: str, prompt: str = "hello") -> None:
    body = {"prompt": prompt}
    await queue.submit(
        [Request.from_body(body, id=name, endpoint="/v1/completions") for name in ids]
    )


async def settle_all(queue: Queue) -> None:
    worker = SettlingWorker(queue)
    await worker.register()
    await worker.settle(100)


async def kill_two(queue: Queue) -> None:
    """Make a dead letter of a request and one of an inbox element."""
    await queue.register("worker", {})
    await submit(queue, "doomed")
    await queue.redis.rpush(queue.keys.inbox, b"not json")
    for number in range(3):
        claim = await queue.claim("worker", f"nonce-{number}", 10)
        for token, _ in claim.inbox:
            await queue.admit_garbage("worker", token, "inbox-1", {"error": "it is not JSON"})
        for claimed in claim.claimed:
            await queue.nack("worker", claimed, 0, {"error": "the engine was away"})


async def test_status_tells_the_state_of_each_id(shell: CommandLine, queue: Queue) -> None:
    await submit(queue, "a")
    await queue.register("worker", {})
    await queue.claim("worker", "nonce", 1)
    await submit(queue, "b")
    done = shell.run("status", "a", "b", "c", "--json")
    assert (done.code, done.rows) == (
        1,
        [
            {"id": "a", "state": "running", "worker": "worker"},
            {"id": "b", "state": "queued", "worker": None},
            {"id": "c", "state": "unknown", "worker": None},
        ],
    )
    assert f"queue {shell.queue} does not know 1 of 3 ids" in done.err
    known = shell.run("status", "a", "b")
    assert (known.code, known.out) == (0, "a  running  on worker\nb  queued\n")
    assert known.err == ""


async def test_result_prints_records_and_its_code_is_the_worst(
    shell: CommandLine, queue: Queue
) -> None:
    await submit(queue, "good")
    await submit(queue, "bad", prompt="fail")
    await settle_all(queue)
    await submit(queue, "waits")
    good = shell.run("result", "good")
    assert good.code == 0
    assert good.rows[0]["body"]["choices"] == [{"text": "hello"}]
    assert shell.run("result", "good", "bad").code == 1
    waits = shell.run("result", "waits")
    assert (waits.code, waits.out) == (1, "")
    assert "waits is not finished" in waits.err
    unknown = shell.run("result", "good", "nobody", "bad")
    assert (unknown.code, len(unknown.rows)) == (4, 2)
    assert "nobody: the id is unknown" in unknown.err


@pytest.mark.parametrize("command", ["result", "status", "cancel"])
async def test_the_id_of_a_row_is_told_from_that_of_its_request(
    shell: CommandLine, queue: Queue, command: str
) -> None:
    await submit(queue, "run-1")
    done = shell.run(command, "batch_req_run-1")
    assert done.code == (4 if command == "result" else 1)
    assert (
        "batch_req_run-1 is the id of a row; the request's id is run-1, without batch_req_"
        in done.err
    )
    assert "id of a row" not in shell.run(command, "other").err


def test_the_prefix_of_the_ids_of_rows_is_the_one_that_rows_have() -> None:
    from gristmill.producer.batches.rows import ID_PREFIX
    from gristmill.producer.commands.requests import ROW_ID_PREFIX

    assert ROW_ID_PREFIX == ID_PREFIX


async def test_result_waits_when_asked(shell: CommandLine, queue: Queue) -> None:
    await submit(queue, "a")
    early = shell.run("result", "a", "--wait", "--timeout-s", "0.01")
    assert (early.code, early.out) == (1, "")
    process = await shell.start("result", "a", "--wait")
    await settle_all(queue)
    assert (await ended(process)).rows[0]["status"] == "succeeded"


async def test_cancel_ends_what_waits_and_says_what_it_was(
    shell: CommandLine, queue: Queue
) -> None:
    await submit(queue, "done")
    await settle_all(queue)
    await submit(queue, "a")
    done = shell.run("cancel", "a", "done", "b")
    assert (done.code, done.out) == (1, "a  cancelled, was queued\ndone  done\nb  unknown\n")
    assert f"queue {shell.queue} does not know 1 of 3 ids" in done.err
    assert shell.run("cancel", "a").code == 0
    assert shell.run("result", "a").rows[0]["status"] == "cancelled"


async def test_dead_letters_are_listed_and_shown_with_their_bytes(
    shell: CommandLine, queue: Queue
) -> None:
    await kill_two(queue)
    letters = {row["id"]: row for row in shell.run("dead", "list", "--json").rows}
    assert letters["doomed"]["reason"] == "attempts_exhausted"
    assert letters["doomed"]["evidence"] == {"error": "the engine was away"}
    assert letters["inbox-1"]["reason"] == "unreadable"
    listed = {line.split()[0]: line for line in shell.run("dead", "list").out.splitlines()}
    assert listed["doomed"].endswith("engine deaths 0  the engine was away")
    assert listed["inbox-1"].endswith("  it is not JSON")
    assert len(shell.run("dead", "list", "--count", "1").out.splitlines()) == 1
    assert '{"prompt":"hello"}' in shell.run("dead", "show", "doomed").out
    assert "not json" in shell.run("dead", "show", "inbox-1").out
    nobody = shell.run("dead", "show", "nobody")
    assert (nobody.code, nobody.out) == (1, "")


async def test_requeue_submits_anew_and_prints_the_new_ids(
    shell: CommandLine, queue: Queue
) -> None:
    await kill_two(queue)
    done = shell.run("dead", "requeue", "--all")
    assert done.code == 1
    assert (
        "inbox-1: it is no request, so it cannot be requeued; see: gristmill dead show inbox-1"
        in done.err
    )
    missing = shell.run("dead", "requeue", "nobody")
    assert (missing.code, missing.err) == (
        1,
        f"nobody: no such dead letter; see: gristmill dead list --queue {shell.queue}\n",
    )
    old, new = done.out.split()
    assert old == "doomed"
    assert (await queue.status([new]))[0][0] == "queued"
    assert [row["id"] for row in shell.run("dead", "list", "--json").rows] == ["inbox-1"]


async def test_purge_asks_first(shell: CommandLine, queue: Queue) -> None:
    await kill_two(queue)
    refused = shell.run("dead", "purge", "--all", stdin=b"n\n")
    assert (refused.code, (await queue.stats()).num_dead) == (130, 2)
    assert shell.run("dead", "purge", "doomed", "--yes").code == 0
    assert (await queue.stats()).num_dead == 1
    again = shell.run("dead", "purge", "doomed", "--yes")
    assert (again.code, "1 of the ids have no dead letter" in again.err) == (1, True)
    assert shell.run("dead", "purge", "--all", stdin=b"y\n").code == 0
    assert (await queue.stats()).num_dead == 0


async def test_queue_stats_is_one_view_for_people_and_programs(
    shell: CommandLine, queue: Queue
) -> None:
    await submit(queue, "a", "b")
    await queue.register("worker", {"models": "base,adapter", "endpoints": "/v1/completions"})
    view = shell.run("queue", "stats", "--json").rows[0]
    assert (view["queue"], view["counters"]["queued"]) == (shell.queue, 2)
    assert view["depth_by_lane"]["normal"] == 2
    assert list(view["workers"]) == ["worker"]
    assert view["served"]["worker"]["models"] == ["base", "adapter"]
    shown = shell.run("queue", "stats").out
    assert "queued     2, 0 of them delayed" in shown
    assert "; serves base, adapter" in shown


async def test_weights_of_tenants_are_set_and_shown(shell: CommandLine) -> None:
    assert "same share" in shell.run("queue", "weights").err
    assert shell.run("queue", "weights", "team=a=3", "b=0.5").out == "b  0.5\nteam=a  3\n"
    assert shell.run("queue", "weights", "b=1", "--json").rows == [{"team=a": 3}]


async def test_a_redis_without_tenants_says_so(shell: CommandLine) -> None:
    async with shell.open_queue() as queue:
        await clear_directory(queue.redis)
    done = shell.run("tenant", "list")
    assert (done.code, done.out) == (0, "")
    assert "there are no tenants; make one: gristmill tenant create" in done.err


@pytest.mark.parametrize("given", ["a", "a=", "a=much", "=2", "a b=2", "a=0", "a=nan", "a=1001"])
async def test_a_weight_that_makes_no_sense_is_refused(shell: CommandLine, given: str) -> None:
    refused = shell.run("queue", "weights", "good=2", given)
    assert (refused.code, refused.out) == (2, "")
    assert shell.run("queue", "weights").out == ""


async def test_queue_audit_fails_on_a_finding(shell: CommandLine, queue: Queue) -> None:
    await submit(queue, "a")
    assert shell.run("queue", "audit").code == 0
    await queue.redis.delete(queue.keys.request("a"))
    found = shell.run("queue", "audit", "--json")
    assert found.code == 1
    assert all({"kind", "subject", "detail"} <= row.keys() for row in found.rows)


ON_THE_QUEUE = ["status a", "result a", "cancel a", "dead list", "queue stats", "submit -"]


@pytest.mark.parametrize("command", ON_THE_QUEUE)
def test_an_unreachable_redis_ends_with_3_and_without_its_password(
    tmp_path: Path, command: str
) -> None:
    port = free_port()
    shell = CommandLine(f"redis://me:s3cret@127.0.0.1:{port}/0", "q", tmp_path)
    done = shell.run(*shlex.split(command), stdin=b'{"prompt": "a"}\n')
    assert (done.code, done.out) == (3, ""), done.err
    assert f"redis://127.0.0.1:{port}/0" in done.err
    assert "REDIS_URL" in done.err
    assert "s3cret" not in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    [*ON_THE_QUEUE, "batch list", "tenant list", "steward", "worker --vllm-url http://a:1"],
)
def test_a_database_that_redis_lacks_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.setenv("GRISTMILL_STORAGE_URL", str(tmp_path / "storage"))
    with running_server() as url:
        shell = CommandLine(url.removesuffix("/0") + "/99", "q", tmp_path)
        done = shell.run(
            *shlex.split(command), stdin=b'{"prompt": "a"}\n', GRISTMILL_HEALTH_PORT="0"
        )
    assert done.code == 2, done.err
    told = done.out if command.startswith("worker") else done.err  # a worker logs events
    (line,) = [line for line in told.splitlines() if "DB index is out of range" in line]
    assert "has no database of this number" in line
    assert "/99" in line
    assert "Traceback" not in done.out + done.err


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://localhost", "REDIS_URL has the scheme http; write redis[s]://"),
        ("localhost:6379", "REDIS_URL has no scheme; write redis[s]://"),
        ("redis://localhost:port", "REDIS_URL cannot be read"),
    ],
)
def test_a_wrong_url_ends_with_2(shell: CommandLine, url: str, message: str) -> None:
    done = shell.run("status", "a", "--redis-url", url)
    assert done.code == 2, done.err
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_wrong_setting_is_named(shell: CommandLine) -> None:
    done = shell.run("status", "a", GRISTMILL_POLL_INTERVAL_S="90")
    assert done.code == 2
    assert "GRISTMILL_POLL_INTERVAL_S" in done.err
    wrong_name = shell.run("status", "a", "--queue", "a b")
    assert (wrong_name.code, "GRISTMILL_QUEUE" in wrong_name.err) == (2, True)


async def test_ctrl_c_ends_with_130(shell: CommandLine, queue: Queue) -> None:
    await submit(queue, "a")
    process = await shell.start("result", "a", "--wait")
    while not is_waiting(shell.redis_url):  # another process
        await asyncio.sleep(0.01)
    assert (await interrupt(process)).code == 130


def is_waiting(url: str) -> bool:
    """Whether a client blocks on its reply list."""
    return any("cmd=blpop" in ask(port, "CLIENT", "LIST") for _, port in parse(url).nodes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("submit", "Missing argument 'INPUT...'"),
        ("submit f -o out", "-o needs --wait"),
        ("submit f --wait --json", "needs -o"),
        ("submit f --run-name a/b", "--run-name 'a/b' is not allowed"),
        ("submit f --priority urgent", "urgent"),
        ("submit f --window 0", "--window"),
        ("result a --timeout-s 5", "needs --wait"),
        ("dead requeue", "or take all with --all\n"),
        ("dead purge", "or take all with --all\n"),
        ("dead purge a --all", "not both"),
        ("nonsense", "No such command 'nonsense'.\n"),
        ("rum", "No such command 'rum'. Did you mean 'run'?\n"),
    ],
)
def test_wrong_usage_is_told(arguments: str, message: str) -> None:
    done = CliRunner().invoke(gristmill, shlex.split(arguments))
    assert done.exit_code == 2
    assert message in done.output


def test_a_file_that_is_not_there_ends_with_2(shell: CommandLine) -> None:
    done = shell.run("submit", "nothing.jsonl")
    assert (done.code, "no file 'nothing.jsonl'" in done.err) == (2, True)


def test_help_lists_all_commands_and_imports_no_engine() -> None:
    script = (
        "import sys; from gristmill.shared.cli import run; run(['--help']);"
        "sys.exit(bool({'torch', 'vllm'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in (b"submit", b"status", b"result", b"cancel", b"dead", b"queue", b"demo", b"worker"):
        assert name in done.stdout


def test_a_command_whose_package_is_missing_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['gristmill.worker.commands'] = None; sys.modules['psutil'] = None\n"
        "import gristmill.producer.commands.requests as commands\n"
        "commands.status.callback = lambda **_: __import__('psutil')\n"
        "from gristmill.shared.cli import run; sys.exit(run(['status', 'a']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 4
    assert re.fullmatch(rb"gristmill: needs psutil; run: pip install .*\[worker\].*\n", done.stderr)


def test_the_version_is_printed(shell: CommandLine) -> None:
    assert shell.run("--version").out.startswith("gristmill ")


def test_the_examples_of_the_demo_are_valid_and_packaged() -> None:
    from gristmill.local.demo.run_demo import REQUESTS
    from gristmill.producer.batches.rows import LineReader
    from gristmill.producer.batches.submit_run import InputFile

    report = InputFile(REQUESTS, LineReader("run", max_request_bytes=2**20)).check()
    assert (report.num_lines, report.num_bad) == (40, 0)
    limits = [
        orjson.loads(line)["body"]["max_tokens"] for line in REQUESTS.read_bytes().splitlines()
    ]
    assert (min(limits), max(limits)) == (8, 200)

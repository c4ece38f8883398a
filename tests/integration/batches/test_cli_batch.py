"""The commands of `gristmill batch` as people type them, while a steward and a worker run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from batches import open_batches, stewarded
from command_line import CommandLine, SettlingWorker, ended

from gristmill.producer.batches.lifecycle import advance


@pytest.fixture
def shell(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("GRISTMILL_STORAGE_URL", str(tmp_path / "storage"))
    return CommandLine(redis_url, f"test-{uuid4().hex[:12]}", tmp_path)


@asynccontextmanager
async def working(shell: CommandLine) -> AsyncIterator[None]:
    async with (
        shell.open_queue() as queue,
        stewarded(open_batches(queue, shell.folder / "storage")),
        SettlingWorker(queue).running(),
    ):
        yield


def line(custom_id: str, prompt: str) -> dict[str, Any]:
    return {"custom_id": custom_id, "url": "/v1/completions", "body": {"prompt": prompt}}


async def test_create_and_wait_writes_every_row(shell: CommandLine) -> None:
    shell.write("in.jsonl", [line(f"c{n}", f"say {n}") for n in range(300)])
    async with working(shell):
        done = await shell.finish(
            "batch", "create", "in.jsonl", "--wait", "-o", "out.jsonl", "--json", "--metadata", "team=a"
        )  # fmt: skip
    assert done.code == 0, done.err
    assert done.rows[0]["request_counts"]["completed"] == 300
    assert (done.rows[0]["endpoint"], done.rows[0]["metadata"]) == ("/v1/completions", {"team": "a"})  # fmt: skip
    assert "tenant" not in done.rows[0]
    rows = {row["custom_id"]: row for row in shell.rows("out.jsonl")}
    assert len(rows) == 300
    assert rows["c7"]["response"]["body"]["choices"] == [{"text": "say 7"}]


async def test_the_way_of_a_batch_with_failures(shell: CommandLine) -> None:
    lines = [line("ok", "a"), line("bad", "fail"), line("ok2", "b")]
    shell.write("in.jsonl", lines)
    created = shell.run("batch", "create", "in.jsonl")
    assert created.code == 0, created.err
    batch = created.out.strip()
    assert batch.startswith("batch_")
    assert shell.run("batch", "show", batch).out.splitlines()[1:3] == [
        "tenant   default",
        "status   validating",
    ]
    async with working(shell):
        shown = await shell.finish("batch", "show", batch, "--wait")
        assert shown.code == 1
        assert "counts   2/3 completed, 1 failed" in shown.out
        rows = await shell.finish("batch", "results", batch)
        assert sorted(row["custom_id"] for row in rows.rows) == ["bad", "ok", "ok2"]
        for unknown in (batch, f"{batch}-1"):
            told = shell.run("result", unknown)
            assert told.code == 4
            assert f"read the rows: gristmill batch results {batch}" in told.err
        hopeless = await shell.finish("batch", "retry-failed", batch)
        assert (hopeless.code, "--all" in hopeless.err) == (2, True)
        again = await shell.finish("batch", "retry-failed", batch, "--all", "--json")
        assert again.rows[0]["retry_of"] == batch
        assert (await shell.finish("batch", "show", again.rows[0]["id"], "--wait")).code == 1
    listed = shell.run("batch", "list").out.splitlines()
    assert [row.split()[0] for row in listed] == [again.rows[0]["id"], batch]
    refused = shell.run("batch", "cancel", batch)
    assert (refused.code, "is completed; only one that is" in refused.err) == (2, True)
    assert shell.run("batch", "show", batch, "--tenant", "other").code == 1


async def test_batches_of_all_tenants_are_listed_and_found(shell: CommandLine) -> None:
    shell.write("in.jsonl", [line("a", "a")])
    ids = [
        shell.run("batch", "create", "in.jsonl", *option).out.strip()
        for option in ([], ["--tenant", "acme"], ["--tenant", "a:b"])
    ]
    newest_first = list(zip(reversed(ids), ["a:b", "acme", "default"], strict=True))
    listed = shell.run("batch", "list")
    assert [tuple(row.split()[:2]) for row in listed.out.splitlines()] == newest_first
    found = shell.run("batch", "list", "--json", "--limit", "2").rows
    assert [(row["id"], row["tenant"]) for row in found] == newest_first[:2]
    own = shell.run("batch", "list", "--tenant", "acme").out
    assert own.split()[:2] == [ids[1], "validating"]
    shown = shell.run("batch", "show", ids[1])
    assert "tenant   acme" in shown.out
    assert (
        f"no steward has taken the batch up yet; start one: gristmill steward --queue {shell.queue}"
        in shown.err
    )
    assert shell.run("batch", "show", ids[1], "--tenant", "acme").code == 0
    other = shell.run("batch", "show", ids[1], "--tenant", "other")
    assert (other.code, other.out) == (1, "")
    assert f"batch {ids[1]} belongs to tenant acme, not other; leave --tenant out" in other.err
    assert shell.run("batch", "cancel", ids[1]).code == 0


def test_that_there_is_no_batch_is_said(shell: CommandLine) -> None:
    listed = shell.run("batch", "list")
    assert (listed.code, listed.out) == (0, "")
    assert f"queue {shell.queue} has no batches" in listed.err
    own = shell.run("batch", "list", "--tenant", "acme")
    assert "no batches of tenant acme; leave --tenant out to see all" in own.err
    shown = shell.run("batch", "show", "batch_x")
    assert (shown.code, f"queue {shell.queue} has no batch 'batch_x'" in shown.err) == (1, True)
    assert "gristmill batch list" in shown.err


async def test_rows_come_while_the_batch_runs(shell: CommandLine) -> None:
    shell.write("in.jsonl", [line(f"c{n}", f"say {n}") for n in range(2000)])
    batch = shell.run("batch", "create", "in.jsonl").out.strip()
    following = await shell.start("batch", "results", batch, "--follow")
    assert following.stdout
    async with (
        shell.open_queue() as queue,
        stewarded(open_batches(queue, shell.folder / "storage")),
    ):
        worker = SettlingWorker(queue)
        await worker.register()
        while len(worker.answered) < 50:
            await worker.settle(10)
        first = orjson.loads(await following.stdout.readline())
        assert not (
            await open_batches(queue, shell.folder / "storage").batch("default", batch)
        ).is_final
        async with worker.running():
            rest, _ = await following.communicate()
    rows = [first, *map(orjson.loads, rest.splitlines())]
    assert sorted(row["custom_id"] for row in rows) == sorted(f"c{n}" for n in range(2000))


async def test_what_holds_a_batch_up_is_said(shell: CommandLine) -> None:
    shell.write("in.jsonl", [line("a", "a")])
    batch = shell.run("batch", "create", "in.jsonl").out.strip()
    waiting = await shell.start("batch", "show", batch, "--wait")
    assert waiting.stderr
    assert b"no steward has taken the batch up yet" in await waiting.stderr.readline()
    async with shell.open_queue() as queue:
        elsewhere = open_batches(queue, shell.folder / "elsewhere")
        with pytest.raises(FileNotFoundError):
            await advance(elsewhere.store, batch, lambda _: True)
    said = await waiting.stderr.readline()
    assert said.startswith(b"a steward failed and will try again: FileNotFoundError")
    async with working(shell):
        assert (await ended(waiting)).code == 0


async def test_a_batch_without_rows_leaves_the_output_alone(shell: CommandLine) -> None:
    shell.write("bad.jsonl", [line("a", "a"), b"broken"])
    kept = shell.folder / "kept.jsonl"
    kept.write_text("precious")
    async with working(shell):
        done = await shell.finish("batch", "create", "bad.jsonl", "--wait", "-o", "kept.jsonl")
    assert (done.code, "has no rows" in done.err, kept.read_text()) == (1, True, "precious")
    assert "error    invalid_json_line: line 2" in done.out
    (listed,) = shell.run("batch", "list").out.splitlines()
    batch, tenant, status, counts = listed.split()[:4]
    assert (tenant, status, counts) == ("default", "failed", "0/0")
    assert "completed  line 2: " in listed
    assert listed.endswith(f"; see: gristmill batch show {batch} --queue {shell.queue}")


def test_a_file_that_is_not_there_is_named(shell: CommandLine) -> None:
    done = shell.run("batch", "create", "nowhere.jsonl")
    assert (done.code, "cannot read 'nowhere.jsonl'" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--window", "soon"), "completion_window 'soon' is not allowed"),
        (("--endpoint", "/v1/nothing"), "endpoint '/v1/nothing' is unknown"),
        (("--metadata", "x"), "--metadata 'x' is not NAME=VALUE"),
        (("-o", "out.jsonl"), "-o needs --wait"),
        (("--wait", "-o", "nowhere/out.jsonl"), "there is no folder nowhere"),
    ],
)
def test_an_option_that_is_wrong_is_named(
    shell: CommandLine, arguments: tuple[str, ...], message: str
) -> None:
    shell.write("in.jsonl", [line("a", "a")])
    done = shell.run("batch", "create", "in.jsonl", *arguments)
    assert (done.code, message in done.err) == (2, True), done.err


async def test_a_paused_batch_waits_and_a_resumed_one_ends(shell: CommandLine) -> None:
    shell.write("in.jsonl", [line(f"c{n}", f"say {n}") for n in range(20)])
    batch = shell.run("batch", "create", "in.jsonl").out.strip()
    paused = shell.run("batch", "pause", batch, "--reason", "the GPU is needed")
    assert (paused.code, paused.err.strip()) == (0, f"batch {batch} is paused")
    assert "was paused already" in shell.run("batch", "pause", batch).err
    async with working(shell), shell.open_queue() as queue:
        while (await queue.stats()).num_parked.get(f"batch:{batch}", 0) < 20:
            await asyncio.sleep(0.02)
        shown = shell.run("batch", "show", batch).out
        assert f"paused   batch {batch} is paused since " in shown
        assert f"the GPU is needed; to resume it: gristmill batch resume {batch} --queue" in shown
        assert "completed  paused" in shell.run("batch", "list").out
        stats = shell.run("queue", "stats").out
        assert f"paused     batch:{batch} since " in stats
        assert f"set aside  20, because batch {batch} is paused" in stats
        assert "is resumed" in shell.run("batch", "resume", batch).err
        done = await shell.finish("batch", "show", batch, "--wait", "--json")
    assert done.rows[0]["request_counts"]["completed"] == 20
    assert "was not paused" in shell.run("batch", "resume", batch).err


async def test_the_end_of_a_batch_ends_its_pause(shell: CommandLine) -> None:
    shell.write("in.jsonl", [line("c", "say")])
    batch = shell.run("batch", "create", "in.jsonl").out.strip()
    shell.run("batch", "pause", batch)
    shell.run("batch", "cancel", batch)
    async with working(shell), shell.open_queue() as queue:
        await shell.finish("batch", "show", batch, "--wait")
        assert (await queue.stats()).pauses == {}
    refused = shell.run("batch", "pause", batch)
    assert refused.code == 2
    assert "it has nothing to pause" in refused.err


async def test_the_rows_of_a_table_become_lines(shell: CommandLine) -> None:
    (shell.folder / "in.csv").write_text("text,n\na,1\n,2\nc,3\n")
    create = (
        "batch",
        "create",
        "in.csv",
        "--prompt",
        "say {text}",
        "--endpoint",
        "/v1/completions",
    )
    refused = shell.run(*create)
    assert refused.code == 2
    assert "in.csv data row 2: column 'text' is null" in refused.err
    refused = shell.run(*create, "--dedupe")
    assert (refused.code, "--dedupe is for gristmill submit; leave it out" in refused.err) == (
        2,
        True,
    )
    async with working(shell):
        done = await shell.finish(*create, "--skip-null", "--wait", "-o", "out.jsonl")
    assert done.code == 0, done.err
    rows = {row["custom_id"]: row["response"]["body"]["choices"] for row in shell.rows("out.jsonl")}
    assert rows == {"row-1": [{"text": "say a"}], "row-3": [{"text": "say c"}]}


@pytest.mark.long  # six commands
async def test_a_file_of_two_models_is_one_batch_of_two_queues(
    shell: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = f"{shell.queue}-b"
    monkeypatch.setenv("GRISTMILL_GATEWAY_QUEUES", second)
    monkeypatch.setenv("GRISTMILL_GATEWAY_MODELS", f"big={second},small={shell.queue}")
    models = ("small", "big")
    lines = [line(f"c{n}", "x") for n in range(6)]
    for n, each in enumerate(lines):
        each["body"]["model"] = models[n % 2]
    shell.write("in.jsonl", lines)
    async with working(shell):
        watching = await shell.start("batch", "create", "in.jsonl", "--wait", "-o", "out.jsonl")
        assert watching.stderr
        untaken = f"start one: gristmill steward --queue {second}"
        while untaken not in (await watching.stderr.readline()).decode():
            pass
        listed = await shell.finish("batch", "list")
        (batch,) = (row.split()[0] for row in listed.out.splitlines())
        shown = (await shell.finish("batch", "show", batch)).out.splitlines()
        assert shown[-2:] == [
            f"queue    {shell.queue}: completed, 3/3 completed",
            f"queue    {second}: in_progress, 0/3 completed",
        ]
        hidden = await shell.finish("batch", "show", f"{batch}@{second}", "--queue", second)
        assert hidden.code != 0
        async with working(replace(shell, queue=second)):
            done = await ended(watching)
    assert done.code == 0, done.err
    assert [row["custom_id"] for row in shell.rows("out.jsonl")] == [f"c{n}" for n in range(6)]

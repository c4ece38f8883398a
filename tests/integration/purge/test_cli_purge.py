"""`gristmill tenant purge` and `gristmill queue purge` as people and scripts call them."""

import asyncio
import os
import pty
import signal
import subprocess
from pathlib import Path
from uuid import uuid4

import orjson
import pytest
from batches import open_batches, upload
from command_line import COMMAND, CommandLine, interrupt
from purges import fill, found_in_keys, found_in_objects, marker_of
from queues import a_request, end_lease, open_worker, some_requests

from gristmill.producer.tenants import Tenant, Tenants
from gristmill.shared.queue import Queue


@pytest.fixture
def shell(any_empty_redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("GRISTMILL_STORAGE_URL", str(tmp_path / "storage"))
    return CommandLine(any_empty_redis_url, f"test-{uuid4().hex[:12]}", tmp_path)


def typed(shell: CommandLine, answer: str, *arguments: str) -> tuple[int, str]:
    """Run a command whose stdin is a terminal on which a person types; return its code and stderr."""
    mine, its = pty.openpty()
    os.write(mine, f"{answer}\n".encode())
    ended = subprocess.run(
        [*COMMAND, *arguments], stdin=its, capture_output=True, env=shell.environment, check=False
    )
    os.close(mine)
    os.close(its)
    return ended.returncode, ended.stderr.decode()


@pytest.mark.parametrize("command", [("tenant", "purge", "acme"), ("queue", "purge")])
async def test_purge_needs_a_confirmation(shell: CommandLine, command: tuple[str, ...]) -> None:
    name = command[2] if len(command) > 2 else shell.queue
    async with shell.open_queue() as queue:
        await queue.submit([a_request("mine", tenant="acme")])
        refused = shell.run(*command)
        assert refused.code == 2
        assert "--yes" in refused.err
        code, told = typed(shell, "another", *command)
        assert code == 2
        assert "nothing was deleted" in told
        assert await queue.redis.exists(queue.keys.request("mine"))
        code, told = typed(shell, name, *command)
        assert code == 0, told
        assert " for good: 1 requests, " in told
        assert not await queue.redis.exists(queue.keys.request("mine"))


async def test_tenant_purge_says_what_it_removed(shell: CommandLine) -> None:
    async with shell.open_queue() as queue:
        await fill(open_batches(queue, shell.folder / "storage"), "acme")
        done = await shell.finish("tenant", "purge", "acme", "--yes")
        assert done.code == 0, done.err
        printed = [line.split(maxsplit=1) for line in done.out.splitlines()]
        lines = {kind: number for number, kind in printed}
        assert {
            "dead letters": "1",
            "files": "2",
            "batches": "2",
            "API keys": "1",
        }.items() <= lines.items()
        assert "found nothing that is left" in done.err
        assert await found_in_keys(queue, marker_of("acme")) == []
        assert found_in_objects(shell.folder, marker_of("acme")) == []
    again = shell.run("tenant", "purge", "acme", "--yes", "--json")
    assert (again.code, again.out) == (1, "")
    assert "there is no tenant 'acme'" in again.err


async def test_tenant_purge_looks_in_every_queue(shell: CommandLine) -> None:
    async with shell.open_queue() as queue:
        other = Queue(queue.redis, f"{shell.queue}-2")
        for each in (queue, other):
            await each.submit([a_request("mine", tenant="acme"), a_request("theirs", tenant="b")])
            await each.tenants.set_weights({"acme": 2})
        await fill(open_batches(queue, shell.folder / "storage"), "acme")
        done = await shell.finish("tenant", "purge", "acme", "--yes", "--json")
        assert (done.code, done.rows[0]["left"]) == (0, {}), done.err
        assert done.rows[0]["removed"]["batches"] == 2
        for each in (queue, other):
            states = [state for state, _ in await each.status(["mine", "theirs"])]
            assert states == ["unknown", "queued"]
            assert await each.tenants.weights() == {}
        assert await found_in_keys(other, "acme") == []


async def test_tenant_purge_looks_in_one_queue_if_another_has_another_storage(
    shell: CommandLine,
) -> None:
    async with shell.open_queue() as queue:
        other, elsewhere = Queue(queue.redis, f"{shell.queue}-2"), shell.folder / "elsewhere"
        await fill(open_batches(queue, shell.folder / "storage"), "acme")
        await upload(open_batches(other, elsewhere), b"{}", "acme")
        purge = ("tenant", "purge", "acme", "--yes", "--json")
        refused = shell.run(*purge)
        assert refused.code == 2
        assert f"of queue {other.keys.queue} names the object" in refused.err
        assert await Tenants(queue.redis).get("acme")
        first = await shell.finish(*purge, "--queue", shell.queue)
        assert (first.code, first.rows[0]["left"]) == (0, {}), first.err
        second = shell.run(*purge, GRISTMILL_STORAGE_URL=str(elsewhere))
        assert (second.code, second.rows[0]["removed"]["files"]) == (0, 1), second.err
        assert shell.run(*purge).code == 1


async def test_misspelt_name_deletes_nothing_and_is_told(shell: CommandLine) -> None:
    async with shell.open_queue() as queue:
        await queue.submit([a_request("mine", tenant="acme")])
        missed = shell.run("tenant", "purge", "acmee", "--yes")
        assert missed.code == 1
        assert "there is no tenant 'acmee'; did you mean 'acme'?" in missed.err
        missed = shell.run("queue", "purge", "--yes", "--queue", f"{shell.queue}x")
        assert missed.code == 1
        assert f"has no queue '{shell.queue}x'; did you mean '{shell.queue}'?" in missed.err
        assert await queue.redis.exists(queue.keys.request("mine"))


@pytest.mark.parametrize("command", [("tenant", "purge", "acme"), ("queue", "purge")])
async def test_wrong_storage_is_refused(shell: CommandLine, command: tuple[str, ...]) -> None:
    async with shell.open_queue() as queue:
        await fill(open_batches(queue, shell.folder / "storage"), "acme")
        await end_lease(queue, "worker-acme")
        refused = shell.run(
            *command, "--yes", GRISTMILL_STORAGE_URL=str(shell.folder / "elsewhere")
        )
        assert refused.code == 2
        assert "elsewhere is absent on this machine; set GRISTMILL_STORAGE_URL" in refused.err
        assert "is left" not in refused.err
        assert "deleting" not in refused.err
        assert await Tenants(queue.redis).get("acme")


async def test_killed_command_is_finished_by_the_next(shell: CommandLine) -> None:
    async with shell.open_queue() as queue:
        for _ in range(20):
            await queue.submit(some_requests(500, tenant="acme"))
        started = await shell.start("tenant", "purge", "acme", "--yes")
        while not (await queue.stats()).counters.get("cancelled"):
            await asyncio.sleep(0.01)
        killed = await interrupt(started, signal.SIGKILL)
        assert killed.code == -signal.SIGKILL
        assert (await queue.stats()).counters["cancelled"] < 10_000
        done = await shell.finish("tenant", "purge", "acme", "--yes", "--json")
        assert done.code == 0, done.err
        assert done.rows[0]["left"] == {}
        assert (await queue.stats()).counters["cancelled"] == 10_000
        assert [key async for key in queue.redis.scan_iter(match=queue.keys.result("*"))] == []


async def test_purge_that_cannot_remove_everything_exits_with_1(shell: CommandLine) -> None:
    async with shell.open_queue() as queue:
        await queue.redis.hset(queue.keys.tenant_load, "acme|requests", 1)
        done = await shell.finish("tenant", "purge", "acme", "--yes")
    assert done.code == 1
    assert "counts of its load" in done.err


async def test_queue_purge_is_refused_while_a_worker_lives(shell: CommandLine) -> None:
    async with shell.open_queue() as queue:
        await open_worker(queue, "w-1")
        refused = shell.run("queue", "purge", "--yes")
        assert refused.code == 4
        assert "stop the workers" in refused.err
        done = shell.run("queue", "purge", "--yes", "--force", "--json")
        assert (done.code, done.rows[0]["left"]) == (0, {})
        assert (await queue.stats()).workers == {}


async def test_queue_purge_leaves_the_tenants(shell: CommandLine) -> None:
    async with shell.open_queue() as queue:
        key = await Tenants(queue.redis).create(Tenant(name="acme"))
        await queue.submit([a_request("mine", tenant="acme")])
        assert (await shell.finish("queue", "purge", "--yes")).code == 0
        assert await Tenants(queue.redis).by_key(key) == Tenant(name="acme")


def test_name_that_no_tenant_can_have_is_wrong_input(shell: CommandLine) -> None:
    assert shell.run("tenant", "purge", "a*", "--yes").code == 2
    assert set(orjson.loads(shell.run("queue", "stats", "--json").out)["counters"].values()) == {0}

"""What waiting commands say of workers and suspects."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import CommandLine, SettlingWorker
from queues import claimed_by, die, end_lease, open_worker

from gristmill.producer.commands.hold_ups import HoldUps
from gristmill.shared.brakes import Brake
from gristmill.shared.pauses import WHOLE_QUEUE, batch_scope
from gristmill.shared.queue import Queue

ALIVE = "is alive; requests run"


async def told(hold_ups: HoldUps, queue: Queue, capsys: pytest.CaptureFixture[str]) -> str:
    hold_ups.tell(await queue.stats())
    return capsys.readouterr().err


async def test_a_worker_that_dies_and_one_that_comes_are_told_once(
    queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    hold_ups = HoldUps(queue.keys.queue)
    assert "no worker serves queue" in await told(hold_ups, queue, capsys)
    assert await told(hold_ups, queue, capsys) == ""
    await open_worker(queue, "w1")
    assert ALIVE in await told(hold_ups, queue, capsys)
    assert (hold_ups.is_served, await told(hold_ups, queue, capsys)) == (True, "")
    await end_lease(queue, "w1")
    assert "is alive; start one: gristmill worker" in await told(hold_ups, queue, capsys)
    assert (hold_ups.is_served, await told(hold_ups, queue, capsys)) == (False, "")
    await open_worker(queue, "w2")
    assert ALIVE in await told(hold_ups, queue, capsys)


async def test_a_worker_that_is_silent_is_told_before_its_lease_ends(
    queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    hold_ups = HoldUps(queue.keys.queue)
    await open_worker(queue, "w1")
    assert await told(hold_ups, queue, capsys) == ""
    silent_ms = queue.limits.lease_ms * 0.6
    await queue.redis.zincrby(queue.keys.workers, -silent_ms, "w1")
    assert "has renewed its lease for 5 s" in await told(hold_ups, queue, capsys)
    assert (hold_ups.is_served, await told(hold_ups, queue, capsys)) == (True, "")
    await queue.beat("w1")
    assert ALIVE in await told(hold_ups, queue, capsys)


async def test_a_command_with_workers_of_its_own_names_their_log(
    queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    hold_ups = HoldUps(queue.keys.queue, Path("out.log"))
    gone = "no worker of this command is alive; it is restarted, see out.log"
    assert gone in await told(hold_ups, queue, capsys)
    await open_worker(queue, "w1")
    assert ALIVE in await told(hold_ups, queue, capsys)
    await queue.redis.zincrby(queue.keys.workers, -queue.limits.lease_ms * 0.6, "w1")
    assert "has renewed its lease for 5 s; see out.log\n" in await told(hold_ups, queue, capsys)
    await end_lease(queue, "w1")
    assert gone in await told(hold_ups, queue, capsys)
    hold_ups.tell_brakes({"w1": 900}, {"w1": Brake("500", 9, 10, "", "r-1")})
    assert capsys.readouterr().err.endswith("; see out.log\n")


async def test_suspects_are_told_once_for_each_death(
    queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    hold_ups = HoldUps(queue.keys.queue)
    await claimed_by(queue, "w1", 3)
    await open_worker(queue, "w2")
    await die(queue, "w1")
    said = await told(hold_ups, queue, capsys)
    assert "3 requests that it ran are tried again first, a few at a time" in said
    assert await told(hold_ups, queue, capsys) == ""


def test_a_brake_of_all_workers_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    hold_ups = HoldUps("q")
    brake = Brake("500 InternalServerError", 9, 10, "No space left on device", "r-1")
    for workers, brakes, words in [
        ({}, {}, ""),
        ({"w1": 900, "w2": 900}, {"w1": brake}, ""),
        (
            {"w1": 900, "w2": 0},
            {"w1": brake},
            "every worker of queue q is braked: 9 of the last 10",
        ),
        ({"w1": 900}, {"w1": brake}, ""),
    ]:
        hold_ups.tell_brakes(workers, brakes)
        said = capsys.readouterr().err
        assert words in said
        assert bool(said) == bool(words)


async def test_requests_of_a_dead_worker_are_not_in_flight(redis_url: str, tmp_path: Path) -> None:
    shell = CommandLine(redis_url, f"test-{uuid4().hex[:12]}", tmp_path)
    shell.write("in.jsonl", [{"prompt": f"say {number}"} for number in range(5)])
    async with shell.open_queue() as queue:
        process = await shell.start("submit", "in.jsonl", "--wait", "-o", "out.jsonl")
        assert process.stderr
        await queue.register("dead", {})
        while len((await queue.claim("dead", uuid4().hex, 2)).claimed) < 2:
            await asyncio.sleep(0)
        await end_lease(queue, "dead")
        said = ""
        while "held by a dead worker" not in said:
            said = (await process.stderr.readline()).decode()
        assert said == (
            "0/5 finished (0 failed), 2 held by a dead worker, 0 in flight, 3 waiting, no worker is alive\n"
        )
        async with SettlingWorker(queue).running():
            while ALIVE not in said:
                said = (await process.stderr.readline()).decode()
            await die(queue, "dead")
            rest = (await process.stderr.read()).decode()
        assert await process.wait() == 0, rest
    assert "5 finished in" in rest


async def test_a_pause_is_told_with_its_reason_and_its_end(
    queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    hold_ups = HoldUps(queue.keys.queue)
    await open_worker(queue)
    assert await told(hold_ups, queue, capsys) == ""
    await queue.pauses.pause(WHOLE_QUEUE, "ann", "new cards")
    said = await told(hold_ups, queue, capsys)
    assert f"nothing runs: queue {queue.keys.queue} is paused since" in said
    assert (
        f"by ann: new cards; to resume it: gristmill queue resume --queue {queue.keys.queue}"
        in said
    )
    assert (hold_ups.is_served, await told(hold_ups, queue, capsys)) == (False, "")
    await queue.pauses.resume(WHOLE_QUEUE)
    assert "goes on: the pause has ended" in await told(hold_ups, queue, capsys)
    await queue.pauses.pause(batch_scope("mine"), "ann")
    hold_ups.tell(await queue.stats(), "other")
    assert capsys.readouterr().err == ""
    hold_ups.tell(await queue.stats(), "mine")
    assert "batch mine is paused" in capsys.readouterr().err

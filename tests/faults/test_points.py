"""Each named point of a request's way, and each way to die there: the same promises hold."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from faults import report
from faults.cell import BINARIES, Cell, Pod, open_cell
from faults.outcome import audited, come_to_rest
from faults.processes import FAILS_ONCE, Prompt
from faults.proxy import Fate, Phase, Trap
from faults.schedule import LEASE_S

NUM_REQUESTS = 24
LIMIT_S = 40

POINTS: dict[str, tuple[str, Phase]] = {
    "while it registers": ("register", "answered"),
    "between claim and admit": ("claim", "answered"),
    "between the engine's result and its settling": ("ack", "asked"),
    "in the middle of a settle": ("ack", "answered"),
    "before a retry's backoff": ("nack", "asked"),
    "during a retry's backoff": ("nack", "answered"),
    "while it reaps": ("reap", "answered"),
    "while it beats": ("beat", "answered"),
}


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    async with open_cell(BINARIES[0], tmp_path) as cell:
        yield cell


def prompts(number: int = NUM_REQUESTS, max_tokens: int = 10) -> dict[str, Prompt]:
    kinds = {0: FAILS_ONCE}
    return {f"r{i}": Prompt(f"{kinds.get(i % 6, 'plain')} {i}", max_tokens) for i in range(number)}


def dies(pod: Pod, number: int) -> Trap:
    """Return what sends a signal to a pod; SIGSTOP is followed by SIGCONT when the lease is long over."""

    async def spring() -> Fate:
        pod.signal(number)
        if number == signal.SIGSTOP:
            await asyncio.sleep(2 * LEASE_S)
            pod.signal(signal.SIGCONT)
        return "pass"

    return Trap("", "asked", 1, spring)


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
@pytest.mark.parametrize("where", POINTS)
async def test_worker_that_dies_at_a_point_loses_and_doubles_nothing(
    cell: Cell, where: str, death: signal.Signals
) -> None:
    asked_for = prompts()
    victim = await cell.add_worker(max_in_flight=6)
    trap = dies(victim, death)
    trap.verb, trap.phase = POINTS[where]
    victim.proxy.traps.append(trap)
    await cell.add_worker(max_in_flight=2)
    producer = await cell.add_producer(asked_for)
    async with asyncio.timeout(LIMIT_S):
        await producer.living
        while not trap.has_sprung:  # a beat, or a reap, may come after the last request
            await asyncio.sleep(0.01)
        await come_to_rest(cell, may_be_killed=True)
    report.count([f"{death.name} {where}"], await audited(cell, asked_for))


async def test_reply_of_each_verb_is_lost_once(cell: Cell) -> None:
    asked_for = prompts()

    async def swallow() -> Fate:
        return "swallow"

    worker = await cell.add_worker(max_in_flight=6)
    verbs = ("register", "claim", "ack", "nack", "beat", "reap", "expire", "stats", "deregister")
    worker.proxy.traps.extend(Trap(verb, "answered", 1, swallow) for verb in verbs)
    producer = await cell.add_producer(asked_for)
    producer.proxy.traps.extend(Trap(verb, "answered", 1, swallow) for verb in ("submit", "mget"))
    async with asyncio.timeout(LIMIT_S):
        await producer.living
        await come_to_rest(cell)
    assert [trap.verb for trap in worker.proxy.traps if not trap.has_sprung] == []
    report.count(["reply of each verb lost"], await audited(cell, asked_for))


async def test_producer_killed_at_each_submit_has_every_request_in_one_place(cell: Cell) -> None:
    """Scenario 37: killed before, in and after its submits, and started again."""
    asked_for = prompts(60)
    await cell.add_worker(max_in_flight=8)
    producer = await cell.add_producer(asked_for)
    phases: tuple[Phase, ...] = ("asked", "answered")
    for nth in range(1, 7):
        trap = dies(producer, signal.SIGKILL)
        trap.verb, trap.phase, trap.nth = "submit", phases[nth % 2], nth
        producer.proxy.traps.append(trap)
    async with asyncio.timeout(LIMIT_S):
        await producer.living
        await come_to_rest(cell)
    assert len(producer.exit_codes) > 1
    report.count(["producer killed in mid-submit"], await audited(cell, asked_for))


async def test_dead_letter_requeued_while_the_reply_is_lost_runs_once(cell: Cell) -> None:
    (item,) = {"r0": Prompt("plain 0", 1)}.items()
    request = item[1].request(item[0])
    await cell.queue.submit([request])
    await cell.queue.register("w", {})
    for _ in range(2):
        (claimed,) = (await cell.queue.claim("w", f"n{_}", 1)).claimed
        await cell.queue.crash("w", {})
    (letter,) = await cell.queue.dead_letters.newest()
    assert letter.id == claimed.id
    codes = [await cell.queue.dead_letters.requeue(letter.id, "again") for _ in range(3)]
    assert codes == ["accepted", "queued", "queued"]
    await cell.queue.deregister("w")
    await cell.add_worker()
    async with asyncio.timeout(LIMIT_S):
        await cell.until("succeeded", 1)
        await come_to_rest(cell)
    assert await cell.queue.dead_letters.requeue(letter.id, "again") == "done"
    first, second = await cell.queue.results(["r0", "again"])
    assert first is not None
    assert second is not None
    assert (first.status, second.status) == ("failed", "succeeded")


async def test_leases_are_handed_back_within_a_second_of_the_grace_periods_end(cell: Cell) -> None:
    loop = asyncio.get_running_loop()
    asked_for = {f"r{i}": Prompt(f"plain {i}", 100_000) for i in range(64)}
    asked_for["last"] = Prompt("plain last", 1)  # when it has ended, all before it have started
    await cell.queue.submit([prompt.request(key) for key, prompt in asked_for.items()])
    worker = await cell.add_worker(max_in_flight=65, drain_timeout_s=1.0)
    await cell.until("succeeded", 1)
    worker.signal(signal.SIGTERM)
    signalled_at = loop.time()
    while (await cell.queue.stats()).counters["in_flight"]:
        await asyncio.sleep(0.005)
    handed_back_s = loop.time() - signalled_at
    assert 1.0 <= handed_back_s <= 2.0
    report.note_recovery("SIGTERM, all handed back after the grace period", handed_back_s - 1.0)
    assert (await cell.queue.stats()).counters["released"] == 64
    assert await worker.stop() == 0

"""Each bad state of Redis, alone: what it costs, and how soon work goes on."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from faults import report
from faults.cell import BINARIES, Cell, Pod, open_cell
from faults.outcome import audited, come_to_rest
from faults.processes import Prompt
from faults.schedule import LEASE_S

from gristmill.shared.queue import MOVED_A_CALL
from gristmill.shared.redis_retry import retrying

LIMIT_S = 50
RESUMES_WITHIN_S = 5.0
NUM_KILLS = 20


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    async with open_cell(BINARIES[-1], tmp_path) as cell:
        yield cell


def prompts(number: int, max_tokens: int = 5) -> dict[str, Prompt]:
    return {f"r{i}": Prompt(f"plain {i}", max_tokens) for i in range(number)}


async def until_claims_resume(cell: Cell) -> float:
    """Return the seconds until something more succeeds."""
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    before = (await retrying(cell.queue.stats)).counters.get("succeeded", 0)
    await cell.until("succeeded", before + 1)
    return loop.time() - started_at


async def restart(cell: Cell) -> None:
    cell.redis.kill()
    await asyncio.sleep(2)
    await cell.redis.start()


async def stall(cell: Cell) -> None:
    cell.redis.pause()
    await asyncio.sleep(2)
    cell.redis.resume()


async def drop_again_and_again(cell: Cell) -> None:
    for _ in range(8):
        await cell.redis.drop_connections()
        await asyncio.sleep(0.2)


async def forget_scripts(cell: Cell) -> None:
    await cell.redis.forget_scripts()


async def be_full(cell: Cell) -> None:
    await cell.redis.fill()
    await asyncio.sleep(1)
    await cell.redis.empty()


async def fail_snapshots(cell: Cell) -> None:
    await cell.redis.fail_snapshots()
    await asyncio.sleep(1)
    await cell.redis.mend_snapshots()


async def be_demoted(cell: Cell) -> None:
    await cell.redis.demote()
    await asyncio.sleep(1)
    await cell.redis.promote()


async def be_half_open(cell: Cell) -> None:
    for pod in cell.workers:
        pod.proxy.flows.clear()
    await asyncio.sleep(2)
    for pod in cell.workers:
        pod.proxy.flows.set()


TROUBLES: dict[str, Callable[[Cell], Awaitable[None]]] = {
    "Redis restart": restart,
    "Redis stalls": stall,
    "CLIENT KILL": drop_again_and_again,
    "SCRIPT FLUSH": forget_scripts,
    "maxmemory": be_full,
    "MISCONF": fail_snapshots,
    "READONLY": be_demoted,
    "half-open connection": be_half_open,
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_work_goes_on_within_five_seconds_and_nothing_is_computed_twice(
    cell: Cell, trouble: str
) -> None:
    """Scenarios 7, 32, 33: results that finish meanwhile are kept, and written when Redis is back."""
    asked_for = prompts(400, max_tokens=20)
    for _ in range(2):
        await cell.add_worker(max_in_flight=10, lease_s=10, beat_s=0.2)
    producer = await cell.add_producer(asked_for)
    async with asyncio.timeout(LIMIT_S):
        await cell.until("succeeded", 40)
        await TROUBLES[trouble](cell)
        resumed_s = await until_claims_resume(cell)
        await producer.living
        await come_to_rest(cell)
    assert resumed_s < RESUMES_WITHIN_S
    report.note_recovery(trouble, resumed_s)
    report.count([trouble], await audited(cell, asked_for))
    computed = sum(
        log.read_text().count('"request.completed"') for log in cell.folder.glob("worker*")
    )
    assert computed == len(asked_for)


@pytest.mark.parametrize("lost_share", [0.1, 0.5])
async def test_power_failure_loses_what_was_not_on_the_disk_and_the_rest_is_consistent(
    cell: Cell, lost_share: float
) -> None:
    """What `appendfsync everysec` can lose: submits of the last second; claims and settlements come again."""
    asked_for = prompts(60)
    requests = [prompt.request(request_id) for request_id, prompt in asked_for.items()]
    await cell.queue.submit(requests[:30])
    on_disk = cell.redis.written_bytes()
    await cell.add_worker(max_in_flight=8)
    await cell.until("succeeded", 10)
    await cell.queue.submit(requests[30:])
    await cell.until("succeeded", 40)
    written = cell.redis.written_bytes()
    cell.redis.kill()
    cell.redis.lose_from(written - int((written - on_disk) * lost_share))
    await cell.redis.start()
    ids = list(asked_for)
    states = await retrying(lambda: cell.queue.status(ids))
    lost = [
        request_id for request_id, (state, _) in zip(ids, states, strict=True) if state == "unknown"
    ]
    assert set(lost) <= set(ids[30:])
    # Whoever keeps its input submits again: what is there is told from what is not.
    await retrying(lambda: cell.queue.submit(requests))
    async with asyncio.timeout(LIMIT_S):
        await cell.until("succeeded", 60)
        await come_to_rest(cell)
    results = await cell.queue.results(ids)
    assert all(result and result.is_success for result in results)
    report.rows["power failure, everysec"].runs += 1
    report.rows["power failure, everysec"].requests += 60
    report.rows["power failure, everysec"].lost += len(lost)


async def test_killed_worker_is_redelivered_within_lease_and_one_beat(cell: Cell) -> None:
    """And all is finished within three times the undisturbed time; scenarios 1 and 9."""
    loop = asyncio.get_running_loop()
    lease_s, beat_s = 1.0, 0.25
    victim = await cell.add_worker(max_in_flight=64, lease_s=lease_s, beat_s=beat_s)
    await cell.add_worker(max_in_flight=64, lease_s=lease_s, beat_s=beat_s)
    calm, disturbed = mixed_lengths("calm"), mixed_lengths("disturbed")
    async with asyncio.timeout(LIMIT_S):
        while len((await cell.queue.stats()).workers) < 2:
            await asyncio.sleep(0.01)
        started_at = loop.time()
        await (await cell.add_producer(calm)).living
        calm_s = loop.time() - started_at

        started_at = loop.time()
        producer = await cell.add_producer(disturbed)
        await cell.until("in_flight", 128)
        name = await worker_named(cell, victim.process.pid or 0)
        victim.signal(signal.SIGKILL)
        killed_at = loop.time()
        while await cell.redis.admin.exists(cell.queue.keys.in_flight(name)):
            await asyncio.sleep(0.005)
        redelivered_s = loop.time() - killed_at
        await producer.living
        disturbed_s = loop.time() - started_at
        await come_to_rest(cell)
    assert redelivered_s <= lease_s + beat_s + 0.25  # a busy machine's beat comes a little late
    assert disturbed_s <= 3 * calm_s
    report.note_recovery("kill -9 with 64 in flight: claimable again", redelivered_s)
    report.note_recovery("kill -9 with 64 in flight: time, undisturbed", calm_s)
    report.note_recovery("kill -9 with 64 in flight: time, disturbed", disturbed_s)
    report.count(["kill -9 with 64 in flight"], await audited(cell, calm | disturbed))


async def test_redelivery_after_each_of_many_kills(cell: Cell) -> None:
    loop = asyncio.get_running_loop()
    endless = prompts(300, max_tokens=100_000)
    await cell.queue.submit([prompt.request(key) for key, prompt in endless.items()])
    victim = await cell.add_worker(max_in_flight=8)
    await cell.add_worker(max_in_flight=1)  # reaps
    async with asyncio.timeout(LIMIT_S):
        for _ in range(NUM_KILLS):
            name = await holder(cell, victim, 8)
            victim.signal(signal.SIGKILL)
            killed_at = loop.time()
            while await cell.redis.admin.exists(cell.queue.keys.in_flight(name)):
                await asyncio.sleep(0.002)
            redelivered_s = loop.time() - killed_at
            assert redelivered_s <= LEASE_S + LEASE_S / 4 + 0.25
            report.note_recovery(
                "kill -9: claimable again, lease 0.6 s, beat 0.15 s", redelivered_s
            )


async def holder(cell: Cell, pod: Pod, number: int) -> str:
    """Return the name of a pod's worker, once it holds so many requests."""
    while True:
        for name in (await cell.queue.stats()).workers:
            pid = await cell.redis.admin.hget(cell.queue.keys.worker(name), "pid")
            num_held = await cell.redis.admin.hlen(cell.queue.keys.in_flight(name))
            if pid == str(pod.process.pid).encode() and num_held >= number:
                return name
        await asyncio.sleep(0.01)


def mixed_lengths(name: str) -> dict[str, Prompt]:
    chance = random.Random(7)
    return {
        f"{name}{i}": Prompt(f"plain {i}", min(400, int(chance.lognormvariate(4, 0.8))))
        for i in range(192)
    }


async def worker_named(cell: Cell, pid: int) -> str:
    for name in (await cell.queue.stats()).workers:
        if await cell.redis.admin.hget(cell.queue.keys.worker(name), "pid") == str(pid).encode():
            return name
    raise AssertionError(f"no worker has the process id {pid}")


async def test_fifty_thousand_in_flight_on_a_hundred_dead_workers(cell: Cell) -> None:
    """Scenario 45: all can be claimed again in under 10 s, and no script moves more than its share."""
    loop = asyncio.get_running_loop()
    queue = cell.queue
    requests = [prompt.request(key) for key, prompt in prompts(50_000).items()]
    for start in range(0, len(requests), 500):
        await queue.submit(requests[start : start + 500])
    for number in range(100):
        worker = f"dead{number}"
        await queue.register(worker, {})
        for nonce in ("a", "b", "c", "d"):
            await queue.claim(worker, nonce, 125)
    await cell.redis.admin.zadd(queue.keys.workers, {f"dead{n}": 1 for n in range(100)}, xx=True)
    started_at = loop.time()
    async with scripts_stay_bounded(cell, 50_000):
        while await queue.reap():
            pass
    reaped_s = loop.time() - started_at
    counters = (await queue.stats()).counters
    assert (counters["queued"], counters["in_flight"], counters["crashed"]) == (50_000, 0, 50_000)
    assert reaped_s < 10
    report.note_recovery("50,000 in flight on 100 dead workers, claimable again", reaped_s)


@asynccontextmanager
async def scripts_stay_bounded(cell: Cell, num_ids: int) -> AsyncIterator[None]:
    """Check that no script moves more than its share of so many ids, however fast the machine is."""
    admin = cell.redis.admin
    await admin.config_resetstat()
    yield
    stats = (await admin.info("commandstats"))["cmdstat_evalsha"]
    assert stats["calls"] >= num_ids / MOVED_A_CALL


async def test_hundred_thousand_past_their_deadline(cell: Cell) -> None:
    """Scenario 48: all get their record, and no script moves more than its share."""
    queue = cell.queue
    requests = [Prompt("x", 1, {"deadline_s": 600}).request(f"r{i}") for i in range(100_000)]
    for start in range(0, len(requests), 500):
        await queue.submit(requests[start : start + 500])
    await make_overdue(cell)
    async with scripts_stay_bounded(cell, 100_000):
        while await queue.expire():
            pass
    counters = (await queue.stats()).counters
    assert (counters["expired"], counters["queued"], counters["bytes"]) == (100_000, 0, 0)


async def make_overdue(cell: Cell) -> None:
    ids: Any = await cell.redis.admin.zrange(cell.queue.keys.deadlines, 0, -1)
    for start in range(0, len(ids), 1000):
        chunk = dict.fromkeys(ids[start : start + 1000], 1)
        await cell.redis.admin.zadd(cell.queue.keys.deadlines, chunk, xx=True)

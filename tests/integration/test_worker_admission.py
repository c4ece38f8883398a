"""What workers take of one queue, in simulated time; scenarios 25 and 26."""

import random
from collections.abc import AsyncIterator, Sequence
from statistics import fmean
from uuid import uuid4

import pytest
from queues import fresh_queue, open_worker
from simulation import SimulatedWorker, simulate

from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.worker.admission.capacity import Capacity
from gristmill.worker.engine.stub_batch import StubBatch

NUM_SEQS = 16


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=600_000)) as queue:
        yield queue


def lengths(number: int, mu: float, sigma: float, most: int) -> list[int]:
    chance = random.Random(7)
    return [1 + min(most, int(chance.lognormvariate(mu, sigma))) for _ in range(number)]


async def submit(
    queue: Queue, outputs: Sequence[int], *, prompt_tokens: int = 8, limit: int = 0
) -> None:
    """Submit requests that write so many tokens; `limit` is their max_tokens, else what they write."""
    requests = [
        Request(
            id=f"{uuid4().hex[:6]}-{i}",
            body=str(output).encode(),
            endpoint=COMPLETIONS,
            prompt_tokens=prompt_tokens,
            max_tokens=limit or output,
        )
        for i, output in enumerate(outputs)
    ]
    for start in range(0, len(requests), 500):
        await queue.submit(requests[start : start + 500])


async def a_worker(
    queue: Queue,
    *,
    max_in_flight: int = 18,
    num_seqs: int = NUM_SEQS,
    kv_cache_tokens: int = 10**6,
    believes: bool = True,
    period: int = 1,
    gulp: int | None = 1,
) -> SimulatedWorker:
    """Return a worker; one that does not believe in the cache counts requests alone."""
    capacity = Capacity(max_in_flight, num_seqs, kv_cache_tokens if believes else 0, gulp)
    name = await open_worker(queue)
    return SimulatedWorker(queue, name, capacity, StubBatch(num_seqs, kv_cache_tokens), period)


@pytest.mark.parametrize("max_in_flight", [18, 128])
async def test_two_workers_of_unequal_speed_finish_together(
    queue: Queue, max_in_flight: int
) -> None:
    """One is four times as fast; neither keeps what the other could run, however high the ceiling."""
    await submit(queue, lengths(3000, 2.0, 0.4, 16))
    fast = await a_worker(queue, max_in_flight=max_in_flight)
    slow = await a_worker(queue, max_in_flight=max_in_flight, period=4)
    ticks = await simulate([fast, slow])
    assert abs(fast.last_end - slow.last_end) <= 0.05 * ticks
    for worker in (fast, slow):
        assert fmean(worker.running) >= 0.95 * NUM_SEQS


async def test_engine_is_full_until_the_queue_is_empty(queue: Queue) -> None:
    """Scenario 25: lognormal lengths, and no barrier."""
    await submit(queue, lengths(1000, 3.0, 1.0, 300))
    worker = await a_worker(queue, max_in_flight=36, num_seqs=32)
    await simulate([worker])
    assert min(worker.running[1:]) >= 0.9 * 32
    assert fmean(worker.running) >= 0.98 * 32


@pytest.mark.parametrize("outputs", [lengths(300, 5.0, 0.5, 500), [200] * 300])
async def test_long_requests_cause_no_storm_of_preemptions(
    queue: Queue, outputs: list[int]
) -> None:
    """Scenario 26: the engine never refuses anything, yet is given little more than its cache can hold."""
    workers, ticks = [], []
    for believes in (False, True):
        await submit(queue, outputs, prompt_tokens=50)
        workers.append(
            await a_worker(
                queue, max_in_flight=70, num_seqs=64, kv_cache_tokens=3000, believes=believes
            )
        )
        ticks.append(await simulate(workers[-1:]))
    counting, knowing = (worker.batch.num_preemptions / len(outputs) for worker in workers)
    assert counting > 1.5  # what is there to avoid
    assert knowing < 0.6
    assert ticks[1] < 1.3 * ticks[0]
    assert fmean(workers[1].usage) > 0.75


async def test_limits_far_above_what_is_written_leave_the_engine_full(queue: Queue) -> None:
    """By their headers three of these fill the cache, in truth sixty do."""
    await submit(queue, lengths(1000, 3.5, 0.5, 150), limit=2000)
    worker = await a_worker(queue, max_in_flight=36, num_seqs=32, kv_cache_tokens=6000)
    await simulate([worker])
    samples = worker.running[len(worker.running) // 4 :]
    assert fmean(samples) >= 0.9 * 32


@pytest.mark.parametrize("gulp", [None, 8])
async def test_gulps_leave_most_steps_to_decode_alone(queue: Queue, gulp: int | None) -> None:
    """A place is free for a few steps, so there are a few more of them; most have no prefill."""
    ticks, workers = [], []
    for size in (1, gulp):
        await submit(queue, lengths(1500, 4.0, 0.8, 300))
        workers.append(await a_worker(queue, max_in_flight=70, num_seqs=64, gulp=size))
        ticks.append(await simulate(workers[-1:]))
    plain, gulping = (
        worker.num_prefills / number for worker, number in zip(workers, ticks, strict=True)
    )
    assert plain > 0.4
    assert gulping < 0.2
    assert ticks[1] < 1.1 * ticks[0]
    assert workers[1].batch.num_waiting == 0


async def test_gulps_of_two_workers_leave_nobody_idle_at_the_end(queue: Queue) -> None:
    await submit(queue, lengths(2000, 3.0, 0.6, 100))
    fast = await a_worker(queue, num_seqs=64, max_in_flight=70, gulp=16)
    slow = await a_worker(queue, num_seqs=64, max_in_flight=70, gulp=16, period=2)
    ticks = await simulate([fast, slow])
    assert abs(fast.last_end - slow.last_end) <= 0.1 * ticks

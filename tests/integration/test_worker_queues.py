"""One worker on several queues: shares by weight, and each queue's requests stay that queue's own."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from queues import end_lease
from workers import local_worker, settings_for

from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.worker.engine import EngineInfo, Response, StubEngine

_numbers = count()


@pytest.fixture
async def queues(redis_url: str) -> AsyncIterator[tuple[Queue, Queue]]:
    redis = connect(redis_url)
    limits = Limits(lease_ms=10_000)
    name = f"test-{uuid4().hex[:12]}"
    yield Queue(redis, f"{name}.a", limits), Queue(redis, f"{name}.b", limits)
    await redis.aclose()


def shared_by(queues: tuple[Queue, Queue], weights: tuple[int, int]) -> dict[str, str]:
    shares = zip(queues, weights, strict=True)
    return {"queue": ",".join(f"{queue.keys.queue}:{weight}" for queue, weight in shares)}


def prompts(number: int, max_tokens: int = 4, word: str = "word") -> list[Request]:
    return [
        Request.from_body(
            {"prompt": word, "max_tokens": max_tokens},
            endpoint=COMPLETIONS,
            id=f"r{next(_numbers)}",
        )
        for _ in range(number)
    ]


async def until_done(queue: Queue, number: int) -> None:
    while (await queue.stats()).counters.get("succeeded", 0) < number:
        await asyncio.sleep(0.005)


class Ledger(StubEngine):
    """Notes the first words of the prompts in the order in which they came."""

    def __init__(self) -> None:
        super().__init__(token_delay_s=0.001)
        self.words: list[str] = []

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        self.words.append(body.decode().split('"prompt":"')[1].split('"')[0])
        return await super().post(endpoint, body, **options)


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_policy": "static", "batch_size": 256},
        {"batch_policy": "bucketed", "batch_size": 64},
        {"batch_size": 256, "max_in_flight": 512},
        {"batch_policy": "static", "batch_size": 64, "max_claim_tokens": 400},
    ],
)
async def test_shares_hold_where_the_room_is_larger_than_a_claim(
    queues: tuple[Queue, Queue], redis_url: str, fields: dict[str, Any]
) -> None:
    for queue, word in zip(queues, ("three", "one"), strict=True):
        for _ in range(4):
            await queue.submit(prompts(500, word=word))
    engine = Ledger()
    settings = settings_for(redis_url, queues[0], **fields, **shared_by(queues, (3, 1)))
    async with local_worker(settings, engine):
        await until_done(queues[0], 1400)
    while_both = engine.words[:1536]  # three gathers of 512, six of 256
    assert while_both.count("three") == pytest.approx(0.75 * 1536, abs=128)


async def test_shares_by_weight_while_both_are_backlogged_and_all_for_one_afterwards(
    queues: tuple[Queue, Queue], redis_url: str
) -> None:
    interactive, bulk = queues
    await interactive.submit(prompts(300, word="interactive"))
    for _ in range(3):
        await bulk.submit(prompts(300, word="bulk"))
    engine = Ledger()
    settings = settings_for(
        redis_url, interactive, max_in_flight=16, batch_size=8, **shared_by(queues, (3, 1))
    )
    async with local_worker(settings, engine):
        await asyncio.gather(until_done(interactive, 300), until_done(bulk, 900))
    while_both = engine.words[:380]  # 300 at three quarters are the last of 400; claims are of 8
    assert while_both.count("interactive") == pytest.approx(0.75 * 380, abs=2 * 8)
    assert set(engine.words[420:]) == {"bulk"}
    assert len(engine.words) == 1200
    assert await audit(interactive) + await audit(bulk) == []


async def test_shares_count_tokens_not_requests(
    queues: tuple[Queue, Queue], redis_url: str
) -> None:
    long, short = queues
    await long.submit(prompts(100, 90, "long"))
    await short.submit(prompts(400, 9, "short"))
    engine = Ledger()
    settings = settings_for(
        redis_url, long, max_in_flight=8, batch_size=4, **shared_by(queues, (1, 1))
    )
    async with local_worker(settings, engine):
        await until_done(short, 400)
        await until_done(long, 100)
    num_long = engine.words[: _last(engine.words, "short")].count("long")
    tokens = {"long": num_long * (90 + 8), "short": 400 * (9 + 8)}  # with the estimate of a prompt
    assert tokens["long"] == pytest.approx(tokens["short"], rel=0.15)


def _last(words: list[str], word: str) -> int:
    return len(words) - words[::-1].index(word)


async def test_same_id_in_two_queues_is_two_requests(
    queues: tuple[Queue, Queue], redis_url: str
) -> None:
    for queue, word in zip(queues, ("left", "right"), strict=True):
        body = {"prompt": word, "max_tokens": 1}
        await queue.submit([Request.from_body(body, endpoint=COMPLETIONS, id="same")])
    settings = settings_for(redis_url, queues[0], **shared_by(queues, (1, 1)))
    async with local_worker(settings, StubEngine()):
        for queue in queues:
            await until_done(queue, 1)
    answers = [(await queue.results(["same"]))[0] for queue in queues]
    texts = [answer.body["choices"][0]["text"] for answer in answers if answer and answer.body]
    assert texts == ["left", "right"]


async def test_idle_worker_hears_the_doorbell_of_each_queue(
    queues: tuple[Queue, Queue], redis_url: str
) -> None:
    settings = settings_for(redis_url, queues[0], poll_interval_s=20.0, **shared_by(queues, (1, 1)))
    async with local_worker(settings, StubEngine()) as worker:
        while not worker.liveness.is_claiming:
            await asyncio.sleep(0.005)
        for queue in (*queues, *queues):
            done = (await queue.stats()).counters.get("succeeded", 0)
            await queue.submit(prompts(1))
            async with asyncio.timeout(15):  # without the bell, 20
                await until_done(queue, done + 1)


async def test_death_of_the_engine_makes_suspects_in_each_queue(
    queues: tuple[Queue, Queue], redis_url: str
) -> None:
    engine = StubEngine(token_delay_s=1)
    for queue in queues:
        await queue.submit(prompts(8, 1000))
    settings = settings_for(redis_url, queues[0], **shared_by(queues, (1, 1)))
    async with local_worker(settings, engine) as worker:
        while engine.stats().running < 16:
            await asyncio.sleep(0.005)
        engine._token_delay_s = 0
        engine.die()
        for queue in queues:
            await until_done(queue, 8)
            assert (await queue.stats()).counters["crashed"] == 8
        assert await worker.stop() is None
    for queue in queues:
        assert (await queue.stats()).workers == {}
        assert await audit(queue) == []


class MortalEngine(StubEngine):
    """Dies of the prompt "poison", after a moment."""

    num_starts = 0

    async def start(self) -> EngineInfo:
        self.num_starts += 1
        return await super().start()

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        if b"poison" in body:
            await asyncio.sleep(0.1)
            self.die()
        return await super().post(endpoint, body, **options)


async def test_poison_in_one_queue_costs_no_innocent_of_the_other(
    queues: tuple[Queue, Queue], redis_url: str
) -> None:
    """Suspects run from one queue at a time, or at a death each queue would blame its only one."""
    await queues[0].submit(prompts(1, word="poison"))
    await queues[1].submit(prompts(1, 50))
    engine = MortalEngine(token_delay_s=0.02)
    settings = settings_for(redis_url, queues[0], **shared_by(queues, (1, 1)))
    async with local_worker(settings, engine):
        await until_done(queues[1], 1)
        while not (letters := await queues[0].dead_letters.newest()):
            await asyncio.sleep(0.005)
    assert [letter.reason for letter in letters] == ["engine_killed"]
    assert await queues[1].dead_letters.newest() == []
    assert engine.num_starts == 3  # one rebuild a death, however many queues
    for queue in queues:
        assert await audit(queue) == []


async def test_lost_lease_of_one_queue_leaves_the_other_alone(
    queues: tuple[Queue, Queue], redis_url: str
) -> None:
    engine = StubEngine(token_delay_s=0.02)
    for queue in queues:
        await queue.submit(prompts(1, 50))
    settings = settings_for(
        redis_url, queues[0], beat_s=0.05, lease_s=2, **shared_by(queues, (1, 1))
    )
    async with local_worker(settings, engine):
        while engine.stats().running < 2:
            await asyncio.sleep(0.002)
        names = [next(iter((await queue.stats()).workers)) for queue in queues]
        while names[0] in (await queues[0].stats()).workers:  # a beat may come in between
            await end_lease(queues[0], names[0])
            await queues[0].reap()
        for queue in queues:
            await until_done(queue, 1)
        after = [next(iter((await queue.stats()).workers)) for queue in queues]
    assert after[0] != names[0]
    assert after[1] == names[1]


async def test_static_batch_is_filled_from_both(
    queues: tuple[Queue, Queue], redis_url: str
) -> None:
    for queue in queues:
        await queue.submit(prompts(4))
    engine = StubEngine(token_delay_s=0.05)
    shares = shared_by(queues, (1, 1))
    settings = settings_for(redis_url, queues[0], batch_policy="static", batch_size=8, **shares)
    async with local_worker(settings, engine):
        while engine.stats().running < 8:
            await asyncio.sleep(0.002)
        for queue in queues:
            await until_done(queue, 4)

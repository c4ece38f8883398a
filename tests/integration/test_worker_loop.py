"""The worker's loop on a true Redis with the stub engine: nothing lost, nothing doubled, no neighbour hurt."""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import orjson
import pytest
from prometheus_client import REGISTRY
from queues import claim, die, end_lease, fresh_queue, open_worker
from redis.exceptions import AuthenticationError, NoPermissionError
from workers import local_worker, settings_for

from gristmill.producer import Client
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.errors import EngineDied, EngineHungUp, EngineUnavailable
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.queue_brakes import read_brakes
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.shared.results import Result
from gristmill.worker.__main__ import serve
from gristmill.worker.death_count import MAX_DEATHS
from gristmill.worker.engine import EngineInfo, Response, StubEngine
from gristmill.worker.lease_losses import MAX_LOSSES


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=10_000)) as queue:
        yield queue


@pytest.fixture
async def client(queue: Queue, redis_url: str) -> AsyncIterator[Client]:
    async with Client(queue=Queue(connect(redis_url), queue.keys.queue, queue.limits)) as client:
        yield client


async def test_an_unknown_error_does_not_end_the_heartbeats(
    queue: Queue, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_calls, expire = 0, Queue.expire

    async def fails_at_first(self: Queue) -> int:
        nonlocal num_calls
        num_calls += 1
        if num_calls < 3:
            raise ValueError("a reply that nobody has seen before")
        return await expire(self)

    monkeypatch.setattr(Queue, "expire", fails_at_first)
    async with local_worker(settings_for(redis_url, queue, beat_s=0.05), StubEngine()):
        while num_calls < 5:
            await asyncio.sleep(0.01)


def a_prompt(word: str, max_tokens: int = 4, **fields: object) -> Request:
    return Request.from_body(
        {"prompt": word, "max_tokens": max_tokens}, endpoint=COMPLETIONS, **fields
    )


def prompts(number: int, max_tokens: int = 4, **fields: object) -> list[Request]:
    return [a_prompt(f"word{i}", max_tokens, **fields) for i in range(number)]


def text_of(result: Result | None) -> str:
    assert result is not None
    assert result.body is not None, result
    return str(result.body["choices"][0]["text"])


async def collect(client: Client, items: list[Request] | list[str]) -> dict[str, Result]:
    return {result.id: result async for result in client.as_completed(items)}


async def until_running(engine: StubEngine, number: int) -> None:
    while engine.stats().running < number:
        await asyncio.sleep(0.001)


class FlakyEngine(StubEngine):
    """Answers as told, by request: `fails[n]` for the n-th post, else as the stub does."""

    def __init__(self, fails: list[Response | Exception]) -> None:
        super().__init__()
        self._fails = iter(fails)

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        match next(self._fails, None):
            case Response() as response:
                return response
            case Exception() as error:
                raise error
            case None:
                return await super().post(endpoint, body, **options)


class Refusing(StubEngine):
    """Never serves the prompt `bad`."""

    def __init__(self, failure: EngineUnavailable) -> None:
        super().__init__()
        self._failure = failure

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        if b'"bad"' in body:
            raise self._failure
        return await super().post(endpoint, body, **options)


async def test_each_result_belongs_to_its_request(
    queue: Queue, client: Client, redis_url: str
) -> None:
    requests = prompts(1000)
    async with local_worker(settings_for(redis_url, queue), StubEngine()):
        results = await collect(client, requests)
    assert {r.id: text_of(results[r.id]).split()[0] for r in requests} == {
        r.id: f"word{i}" for i, r in enumerate(requests)
    }
    assert await audit(queue) == []


async def test_each_result_says_what_made_it(queue: Queue, client: Client, redis_url: str) -> None:
    seeded = Request.from_body({"prompt": "a", "max_tokens": 1, "seed": 7}, endpoint=COMPLETIONS)
    refused = a_prompt("b", max_tokens=-1)
    async with local_worker(settings_for(redis_url, queue), StubEngine()):
        results = await collect(client, [seeded, refused])
    same = {"model": "stub", "engine": "stub", "worker": f"gristmill {version('gristmill')}"}
    assert results[seeded.id].made_by == same | {"seed": 7}
    assert results[refused.id].made_by == same


async def test_results_after_a_restart_say_what_the_engine_is_now(
    queue: Queue, client: Client, redis_url: str
) -> None:
    class Upgraded(StubEngine):
        weights = iter(["sha256:old", "sha256:new"])

        async def start(self) -> EngineInfo:
            return replace(await super().start(), weights=next(self.weights))

    engine = Upgraded()
    async with local_worker(settings_for(redis_url, queue), engine):
        before = await client.wait(await client.submit(a_prompt("a")), timeout_s=20)
        engine.die()
        after = await client.wait(await client.submit(a_prompt("b")), timeout_s=20)
    assert [before.made_by["weights"], after.made_by["weights"]] == ["sha256:old", "sha256:new"]


async def test_map_keeps_the_order_of_the_input(
    queue: Queue, client: Client, redis_url: str
) -> None:
    requests = [a_prompt(str(i), max_tokens=1 + (i * 7) % 13) for i in range(200)]
    async with local_worker(settings_for(redis_url, queue), StubEngine(token_delay_s=0.001)):
        ids = [result.id async for result in client.map(requests, window=32)]
    assert ids == [request.id for request in requests]


async def test_nothing_is_claimed_before_the_engine_is_ready(queue: Queue, redis_url: str) -> None:
    class NeverReady(StubEngine):
        async def start(self):  # type: ignore[no-untyped-def]
            raise EngineDied("no memory")

    await queue.submit(prompts(3))
    with pytest.raises(EngineDied, match="no memory"):
        async with local_worker(settings_for(redis_url, queue), NeverReady()):
            pass
    assert (await queue.stats()).depth_by_lane["normal"] == 3


async def test_engine_is_kept_full_without_a_barrier(
    queue: Queue, client: Client, redis_url: str
) -> None:
    """Scenario 25: lengths differ widely, yet what runs stays at nine tenths of the cap until the end."""
    engine = StubEngine(token_delay_s=0.01)
    lengths = random.Random(5)
    requests = [
        a_prompt(f"w{i}", int(min(200, lengths.lognormvariate(3, 1)) + 1)) for i in range(400)
    ]
    await queue.submit(requests)
    seen: list[int] = []
    async with local_worker(settings_for(redis_url, queue, max_in_flight=40), engine):
        await until_running(engine, 40)
        while (await queue.stats()).counters["queued"] > 0:
            seen.append(engine.stats().running)
        await collect(client, [request.id for request in requests])
    assert sorted(seen)[len(seen) // 10] >= 36
    assert max(seen) <= 40


async def test_static_policy_runs_a_batch_to_its_end(
    queue: Queue, client: Client, redis_url: str
) -> None:
    engine = StubEngine(token_delay_s=0.001)
    settings = settings_for(redis_url, queue, batch_policy="static", batch_size=8)
    requests = [a_prompt(f"w{i}", 1 + 10 * (i % 8 == 0)) for i in range(24)]
    await queue.submit(requests)
    async with local_worker(settings, engine):
        results = await collect(client, [r.id for r in requests])
    finished = sorted(results.values(), key=lambda result: result.finished_ms)
    groups = [{r.id for r in finished[i : i + 8]} for i in (0, 8, 16)]
    assert groups == [{r.id for r in requests[i : i + 8]} for i in (0, 8, 16)]


async def test_sequential_policy_runs_one_at_a_time(
    queue: Queue, client: Client, redis_url: str
) -> None:
    settings = settings_for(redis_url, queue, batch_policy="sequential")
    requests = prompts(10, max_tokens=3)
    await queue.submit(requests)
    seen: list[int] = []

    class Watched(StubEngine):
        async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
            seen.append(self.stats().running)
            return await super().post(endpoint, body, **options)

    engine = Watched(token_delay_s=0.001)
    async with local_worker(settings, engine):
        results = await collect(client, [r.id for r in requests])
    assert seen == [0] * 10
    finished = sorted(results.values(), key=lambda result: result.finished_ms)
    assert [result.id for result in finished] == [request.id for request in requests]


async def test_batch_that_a_drain_meets_is_handed_back(queue: Queue, redis_url: str) -> None:
    closed_by = {"closed_by": "stopping"}
    before = REGISTRY.get_sample_value("gristmill_claims_total", closed_by) or 0
    settings = settings_for(
        redis_url, queue, batch_policy="dynamic", batch_size=8, batch_timeout_ms=600_000
    )
    await queue.submit(prompts(3))
    async with local_worker(settings, StubEngine()) as worker:
        while (await queue.stats()).counters.get("in_flight", 0) < 3:
            await asyncio.sleep(0.001)
        await worker.stop()
    assert REGISTRY.get_sample_value("gristmill_claims_total", closed_by) == before + 1
    assert (await queue.stats()).counters["queued"] == 3


async def test_engine_with_a_small_cache_is_given_what_fits(
    queue: Queue, client: Client, redis_url: str
) -> None:
    """By their headers eight fill the cache; all ask for all they are allowed."""
    engine = StubEngine(token_delay_s=0.001, max_num_seqs=64, kv_cache_tokens=8 * 60)
    requests = prompts(100, max_tokens=50, prompt_tokens=10)
    await queue.submit(requests)
    async with local_worker(settings_for(redis_url, queue), engine):
        await until_running(engine, 8)
        assert engine.stats().running + engine.stats().waiting == 8
        results = await collect(client, [request.id for request in requests])
        assert engine.stats().preemptions < 50
        budget = REGISTRY.get_sample_value("gristmill_admission_budget_tokens")
        assert budget is not None
        assert budget >= 480 / 2
    assert len(results) == 100


@pytest.mark.parametrize("policy", ["dynamic", "static", "bucketed", "sequential"])
async def test_every_policy_serves_a_last_short_batch(
    queue: Queue, client: Client, redis_url: str, policy: str
) -> None:
    settings = settings_for(
        redis_url, queue, batch_policy=policy, batch_size=8, batch_timeout_ms=20
    )
    async with local_worker(settings, StubEngine()):
        results = await collect(client, prompts(21))
    assert len(results) == 21


@pytest.mark.parametrize(("policy", "size"), [("static", 64), ("bucketed", 20)])
async def test_batch_that_exceeds_the_engine_is_started(
    queue: Queue, client: Client, redis_url: str, policy: str, size: int
) -> None:
    """A policy with a barrier gathers a whole batch, whatever the engine has room for."""
    settings = settings_for(
        redis_url, queue, batch_policy=policy, batch_size=size, batch_timeout_ms=20, max_in_flight=8
    )
    async with local_worker(settings, StubEngine()):
        results = await collect(client, prompts(50))
    assert len(results) == 50


async def test_high_priority_overtakes(queue: Queue, client: Client, redis_url: str) -> None:
    low = prompts(40, max_tokens=10, priority="low")
    high = prompts(5, max_tokens=10, priority="high")
    await queue.submit(low + high)
    async with local_worker(
        settings_for(redis_url, queue, max_in_flight=5), StubEngine(token_delay_s=0.001)
    ):
        results = await collect(client, [r.id for r in low + high])
    order = sorted(results, key=lambda request_id: results[request_id].finished_ms)
    assert set(order[:5]) == {request.id for request in high}


async def test_cancel_frees_a_running_request(queue: Queue, client: Client, redis_url: str) -> None:
    engine = StubEngine(token_delay_s=1)
    async with local_worker(settings_for(redis_url, queue, beat_s=0.05), engine):
        request_id = await client.submit(a_prompt("endless", 1000))
        await until_running(engine, 1)
        assert await client.cancel([request_id]) == ["running"]
        assert (await client.wait(request_id)).status == "cancelled"
        while engine.stats().running:
            await asyncio.sleep(0.001)


async def test_deadline_ends_a_running_request(
    queue: Queue, client: Client, redis_url: str
) -> None:
    engine = StubEngine(token_delay_s=1)
    async with local_worker(settings_for(redis_url, queue, beat_s=0.05), engine):
        request_id = await client.submit(a_prompt("late", 1000, deadline_s=0.2))
        assert (await client.wait(request_id)).status == "expired"
        while engine.stats().running:
            await asyncio.sleep(0.001)


async def test_client_errors_are_not_retried(queue: Queue, client: Client, redis_url: str) -> None:
    engine = FlakyEngine([Response(400, b'{"error":{"message":"too long"}}')])
    async with local_worker(settings_for(redis_url, queue), engine):
        request_id = await client.submit(a_prompt("x"))
        result = await client.wait(request_id)
    assert (result.status, result.status_code, result.attempt) == ("failed", 400, 1)
    assert result.failure == "HTTP 400: too long"


async def test_server_error_is_tried_once_more_then_believed(
    queue: Queue, client: Client, redis_url: str
) -> None:
    fault = Response(500, b'{"error":{"message":"boom"}}')
    async with local_worker(
        settings_for(redis_url, queue, backoff_base_s=0.01), FlakyEngine([fault])
    ):
        assert (await client.wait(await client.submit(a_prompt("x")))).attempt == 2
    async with local_worker(
        settings_for(redis_url, queue, backoff_base_s=0.01), FlakyEngine([fault] * 2)
    ):
        result = await client.wait(await client.submit(a_prompt("y")))
    assert (result.status, result.status_code, result.attempt) == ("failed", 500, 2)


async def test_one_in_five_failing_drains_to_zero(
    queue: Queue, client: Client, redis_url: str
) -> None:
    """Scenario 3."""
    fault = Response(500, b'{"error":{"message":"boom"}}')
    engine = FlakyEngine([fault if i % 5 == 0 else None for i in range(1000)])  # type: ignore[misc]
    settings = settings_for(redis_url, queue, max_in_flight=4, backoff_base_s=0.001)
    async with local_worker(settings, engine):
        results = await collect(client, prompts(1000))
    assert len(results) == 1000
    counters = (await queue.stats()).counters
    assert (counters["queued"], counters["in_flight"]) == (0, 0)
    assert await audit(queue) == []


async def test_unavailable_engine_costs_no_attempt(
    queue: Queue, client: Client, redis_url: str
) -> None:
    engine = FlakyEngine([EngineUnavailable("503")] * 5)
    async with local_worker(settings_for(redis_url, queue, backoff_base_s=0.001), engine):
        result = await client.wait(await client.submit(a_prompt("x", max_attempts=1)))
    assert (result.status, result.attempt) == ("succeeded", 1)


@pytest.mark.parametrize(
    "failure",
    [EngineUnavailable("answered 504"), EngineUnavailable("answered 503", is_refusal=True)],
)
async def test_requests_that_a_server_fails_alone_hold_no_places_and_end(
    queue: Queue, client: Client, redis_url: str, failure: EngineUnavailable
) -> None:
    """The whole engine is full of them; the others run nevertheless."""
    settings = settings_for(
        redis_url, queue, max_in_flight=2, backoff_base_s=0.01, backoff_max_s=0.05
    )
    bad = [a_prompt("bad", max_attempts=2) for _ in range(4)]
    async with local_worker(settings, Refusing(failure)):
        await client.submit_many(bad)
        while (await queue.stats()).counters.get("released", 0) < 4:
            await asyncio.sleep(0.001)
        good = await collect(client, prompts(10))
        assert {result.status for result in good.values()} == {"succeeded"}
        ended = await collect(client, [request.id for request in bad])
    assert {(result.status, result.attempt) for result in ended.values()} == {("failed", 2)}
    letters = await queue.dead_letters.newest()
    evidence = {"code": "engine_unavailable", "message": str(failure)}
    assert [letter.evidence for letter in letters] == [evidence] * 4
    assert await audit(queue) == []


async def test_retry_after_is_kept(queue: Queue, client: Client, redis_url: str) -> None:
    failure = EngineUnavailable("answered 503", is_refusal=True, retry_after_s=3000)
    async with local_worker(settings_for(redis_url, queue), Refusing(failure)):
        request_id = await client.submit(a_prompt("bad"))
        while await queue.status([request_id]) != [("delayed", "")]:
            await asyncio.sleep(0.001)
    due_ms = await queue.redis.zscore(queue.keys.delayed, request_id)
    assert due_ms is not None
    assert 2900 < due_ms / 1000 - time.time() <= 3000


async def test_a_request_that_the_engine_always_hangs_up_on_ends(
    queue: Queue, client: Client, redis_url: str
) -> None:
    engine = FlakyEngine([EngineHungUp("the connection broke")] * 2)
    async with local_worker(settings_for(redis_url, queue, backoff_base_s=0.001), engine):
        result = await client.wait(await client.submit(a_prompt("x", max_attempts=2)))
        assert (result.status, result.attempt) == ("failed", 2)
        assert (await client.wait(await client.submit(a_prompt("y")))).status == "succeeded"
    (letter,) = await queue.dead_letters.newest()
    assert letter.evidence == {"code": "connection_broken", "message": "the connection broke"}


async def test_drain_does_not_wait_for_an_engine_that_is_away(
    queue: Queue, client: Client, redis_url: str
) -> None:
    engine = FlakyEngine([EngineUnavailable("503")] * 4)
    settings = settings_for(
        redis_url, queue, backoff_base_s=1e6, backoff_max_s=1e6, drain_timeout_s=1000
    )
    async with local_worker(settings, engine) as worker:
        await client.submit_many(prompts(4))
        while (await queue.stats()).counters.get("released", 0) < 4:
            await asyncio.sleep(0.001)
        await worker.stop()
    assert (await queue.stats()).num_delayed == 4


async def test_drain_at_any_instant_gives_everything_back_at_once(
    queue: Queue, client: Client, redis_url: str
) -> None:
    """Scenarios 2 and 36: 100 random instants, claims, backoffs and settles under way."""
    chance = random.Random(2)
    requests = prompts(300, max_tokens=3)
    await queue.submit(requests)
    for _ in range(100):
        engine = FlakyEngine([EngineUnavailable("503")] * chance.randrange(3))
        engine._token_delay_s = 0.002
        settings = settings_for(
            redis_url, queue, max_in_flight=16, drain_timeout_s=0, backoff_base_s=0.01
        )
        async with local_worker(settings, engine) as worker:
            await asyncio.sleep(chance.random() * 0.03)
            assert await worker.stop() is None
        stats = await queue.stats()
        assert stats.counters.get("in_flight", 0) == 0
        assert stats.workers == {}
        assert await audit(queue) == []
    async with local_worker(settings_for(redis_url, queue), StubEngine()):
        results = await collect(client, [request.id for request in requests])
    assert {result.status for result in results.values()} == {"succeeded"}
    assert len(results) == 300


async def test_drain_finishes_what_fits(queue: Queue, client: Client, redis_url: str) -> None:
    engine = StubEngine(token_delay_s=0.01)
    requests = prompts(8, max_tokens=10)
    await queue.submit(requests)
    async with local_worker(settings_for(redis_url, queue, drain_timeout_s=30), engine) as worker:
        await until_running(engine, 8)
        assert await worker.stop() is None
    assert (await queue.stats()).counters["succeeded"] == 8
    assert not worker.liveness.is_claiming


async def test_engine_death_makes_suspects_not_losses(
    queue: Queue, client: Client, redis_url: str
) -> None:
    engine = StubEngine(token_delay_s=1)
    requests = prompts(32, max_tokens=1000)
    await queue.submit(requests)
    async with local_worker(settings_for(redis_url, queue), engine) as worker:
        await until_running(engine, 32)
        (lease,) = (await queue.stats()).workers
        engine._token_delay_s = 0
        engine.die()
        results = await collect(client, [request.id for request in requests])
        assert list((await queue.stats()).workers) == [lease]
        assert not worker.task.done()
    assert {(result.status, result.attempt) for result in results.values()} == {("succeeded", 1)}
    assert (await queue.stats()).counters["crashed"] == 32


async def test_engine_that_comes_back_slowly_holds_up_nobody_elses_requests(
    queue: Queue, client: Client, redis_url: str
) -> None:
    """What was in flight is claimed by another worker while the engine is built anew."""
    engine = SlowToStart(token_delay_s=1)
    requests = prompts(16, max_tokens=1000)
    await queue.submit(requests)
    async with local_worker(settings_for(redis_url, queue), engine) as slow:
        await until_running(engine, 16)
        engine.die()
        async with local_worker(settings_for(redis_url, queue), StubEngine()):
            results = await collect(client, [request.id for request in requests])
        assert slow.liveness.unready_reason() == "waiting for the engine to start anew"
        assert slow.liveness.is_alive()
        assert await slow.stop() is None
    assert {result.status for result in results.values()} == {"succeeded"}
    assert (await queue.stats()).workers == {}


async def test_ack_writer_that_fails_at_a_death_ends_the_worker_at_once(
    queue: Queue, client: Client, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = StubEngine(token_delay_s=0.05)

    async def refuse(*_: object) -> list[int]:
        engine.die()
        raise NoPermissionError("NOPERM no right to settle")

    await queue.submit([a_prompt("short", 1), a_prompt("long", 100)])
    monkeypatch.setattr(Queue, "ack", refuse)
    monkeypatch.setattr("gristmill.worker.queue_source.STOP_TIMEOUT_S", 0.2)
    async with local_worker(settings_for(redis_url, queue), engine) as worker:
        with pytest.raises(NoPermissionError):
            await worker.task


async def test_request_claimed_at_the_moment_of_a_death_is_no_suspect(
    queue: Queue, client: Client, redis_url: str
) -> None:
    """The queue granted a claim whose answer the worker never saw; it has not run."""
    engine = StubEngine(token_delay_s=0.01)
    async with local_worker(settings_for(redis_url, queue, max_in_flight=1), engine) as worker:
        await queue.submit([a_prompt("first", 20)])
        await until_running(engine, 1)
        await queue.submit([a_prompt("second", 1)])
        (name,) = (await queue.stats()).workers
        (second,) = (await queue.claim(name, "unseen", 1)).claimed
        engine.die()
        result = await client.wait(second.id)
        assert await worker.stop() is None
    assert (result.status, result.attempt) == ("succeeded", 1)
    assert (await queue.stats()).counters["crashed"] == 1  # the one that ran


async def lose_lease(queue: Queue) -> str:
    """Take the lease of the only worker away; return its name."""
    while not (workers := (await queue.stats()).workers):
        await asyncio.sleep(0.01)
    (name,) = workers
    while name in (await queue.stats()).workers:  # a beat that comes in between renews the lease
        await end_lease(queue, name)
        await queue.reap()
    return name


class SlowToStart(StubEngine):
    """Starts once; after that, never."""

    has_started = False

    async def start(self) -> EngineInfo:
        if self.has_started:
            await asyncio.Event().wait()
        self.has_started = True
        return await super().start()


async def test_worker_that_keeps_losing_its_lease_claims_nothing_and_says_why(
    queue: Queue, redis_url: str
) -> None:
    async with local_worker(settings_for(redis_url, queue, beat_s=0.05), StubEngine()) as worker:
        for _ in range(MAX_LOSSES):
            await lose_lease(queue)
        while not worker.liveness.unready_reason():
            await asyncio.sleep(0.01)
        (request,) = prompts(1)
        await queue.submit([request])
        while not (workers := (await queue.stats()).workers):
            await asyncio.sleep(0.01)
        while not (brakes := await read_brakes(queue.redis, queue.keys, workers)):
            await asyncio.sleep(0.01)
        assert await queue.status([request.id]) == [("queued", "")]
    (brake,) = brakes.values()
    assert brake.in_words().startswith("lost its lease 3 times in a row: its process or its clock")


async def test_lost_lease_starts_over_under_a_new_name(
    queue: Queue, client: Client, redis_url: str
) -> None:
    """Scenarios 5 and 43: told what to abort, and nothing is lost."""
    engine = StubEngine(token_delay_s=0.05)
    request = a_prompt("x", 10)
    await queue.submit([request])
    # The suspect waits for one lease, because no other worker is there to take it.
    async with local_worker(settings_for(redis_url, queue, beat_s=0.05, lease_s=2), engine):
        await until_running(engine, 1)
        name = await lose_lease(queue)
        result = await client.wait(request.id)
        (new_name,) = (await queue.stats()).workers
    assert new_name != name
    assert (result.status, result.worker) == ("succeeded", new_name)


async def test_what_only_the_queue_believes_to_be_held_is_handed_back(
    queue: Queue, client: Client, redis_url: str
) -> None:
    """A Redis that lost its last writes has forgotten settlements, or a claim was granted to nobody."""
    engine = StubEngine(token_delay_s=0.05)
    settings = settings_for(redis_url, queue, beat_s=0.05, max_in_flight=1)
    async with local_worker(settings, engine) as worker:
        long, other = a_prompt("long", 10), a_prompt("other", 1)
        await queue.submit([long])
        await until_running(engine, 1)
        (name,) = (await queue.stats()).workers
        await queue.submit([other])
        (claimed,) = (await queue.claim(name, "behind its back", 1)).claimed
        assert claimed.id == other.id
        results = await collect(client, [long.id, other.id])
        assert await worker.stop() is None
    assert {result.status for result in results.values()} == {"succeeded"}
    assert (await queue.stats()).counters["released"] == 1
    assert await audit(queue) == []


async def test_inbox_takes_plain_json_and_keeps_garbage(
    queue: Queue, client: Client, redis_url: str
) -> None:
    body = orjson.dumps(
        {"id": "mine", "endpoint": COMPLETIONS, "body": {"prompt": "hi", "max_tokens": 2}}
    )
    async with local_worker(settings_for(redis_url, queue, poll_interval_s=0.1), StubEngine()):
        await queue.redis.rpush(queue.keys.inbox, b"\xff garbage", body)
        while await queue.redis.get(queue.keys.result("mine")) is None:
            await asyncio.sleep(0.005)
        while not (letters := await queue.dead_letters.newest()):
            await asyncio.sleep(0.005)
    assert text_of((await queue.results(["mine"]))[0]) == "hi hi"
    assert [(letter.reason, letter.record) for letter in letters] == [
        ("unreadable", b"\xff garbage")
    ]


class MortalEngine(StubEngine):
    """Dies of a prompt that begins with "poison"."""

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        if b"poison" in body:
            self.die()
        return await super().post(endpoint, body, **options)


async def test_poison_is_dead_lettered_with_evidence_and_the_worker_lives(
    queue: Queue, client: Client, redis_url: str
) -> None:
    poison, innocent = a_prompt("poison"), prompts(20)
    await queue.submit([*innocent[:10], poison, *innocent[10:]])
    settings = settings_for(redis_url, queue, max_in_flight=8, backoff_base_s=0.01)
    async with local_worker(settings, MortalEngine()) as worker:
        results = await collect(client, [request.id for request in (*innocent, poison)])
        assert await worker.stop() is None
    assert {results[request.id].status for request in innocent} == {"succeeded"}
    assert results[poison.id].failure.startswith("engine_killed: the engine died 2 times")
    (letter,) = await queue.dead_letters.newest()
    assert (letter.id, letter.reason) == (poison.id, "engine_killed")
    assert letter.evidence["error"] == "the stub engine was told to die"
    assert letter.evidence["engine_args"] == ["stub"]
    assert await audit(queue) == []


async def test_engine_that_dies_again_and_again_for_nothing_ends_the_worker(
    queue: Queue, redis_url: str
) -> None:
    await queue.submit([a_prompt(f"poison{i}") for i in range(20)])
    settings = settings_for(redis_url, queue, backoff_base_s=0.01)
    async with local_worker(settings, MortalEngine()) as worker:
        death = await worker.task
    assert str(death) == "the stub engine was told to die"
    stats = await queue.stats()
    assert stats.counters["failed"] == MAX_DEATHS - 1
    assert (stats.counters["in_flight"], stats.workers) == (0, {})
    assert await audit(queue) == []


async def test_answer_that_is_too_large_fails_and_says_so(
    queue: Queue, client: Client, redis_url: str
) -> None:
    settings = settings_for(redis_url, queue, max_result_bytes=1024)
    async with local_worker(settings, StubEngine()):
        large, small = await client.submit_many([a_prompt("word", 1000), a_prompt("word", 10)])
        result = await client.wait(large)
        assert (await client.wait(small)).is_success
    assert (result.status, result.status_code, result.attempt) == ("failed", 413, 1)
    assert "the limit is 1,024 (MAX_RESULT_BYTES)" in result.failure


class Reluctant(StubEngine):
    """Fails its second start."""

    num_starts = 0

    async def start(self) -> EngineInfo:
        self.num_starts += 1
        if self.num_starts == 2:
            raise EngineDied("no memory yet")
        return await super().start()


async def test_rebuild_that_fails_is_tried_again(
    queue: Queue, client: Client, redis_url: str
) -> None:
    engine = Reluctant(token_delay_s=0.01)
    settings = settings_for(redis_url, queue, backoff_base_s=0.01)
    async with local_worker(settings, engine) as worker:
        ids = await client.submit_many(prompts(4))
        await until_running(engine, 4)
        engine.die()
        assert len(await collect(client, ids)) == 4
        assert await worker.stop() is None
    assert engine.num_starts == 3


async def test_engine_that_dies_in_its_warm_up_makes_no_request_a_suspect(
    queue: Queue, client: Client, redis_url: str
) -> None:
    """A second death with one suspect in flight would end that request; a warm-up has none in flight."""
    engine = Reluctant(token_delay_s=0.01)
    settings = settings_for(redis_url, queue, backoff_base_s=0.01, max_in_flight=1)
    async with local_worker(settings, engine) as worker:
        request_id = await client.submit(a_prompt("word", 20))
        await until_running(engine, 1)
        engine.die()
        assert (await client.wait(request_id)).is_success
        assert await worker.stop() is None
    assert engine.num_starts == 3
    assert await queue.dead_letters.newest() == []


async def test_deaths_with_settled_requests_in_between_are_forgiven(
    queue: Queue, client: Client, redis_url: str
) -> None:
    engine = StubEngine()
    async with local_worker(settings_for(redis_url, queue), engine) as worker:
        for _ in range(2 * MAX_DEATHS):
            assert (await client.wait(await client.submit(a_prompt("x")))).is_success
            engine.die()
        assert (await client.wait(await client.submit(a_prompt("x")))).is_success
        assert await worker.stop() is None


async def test_start_that_takes_too_long_is_a_death_that_names_the_setting(
    queue: Queue, redis_url: str
) -> None:
    engine = SlowToStart()
    await engine.start()
    settings = settings_for(redis_url, queue, start_timeout_s=0.05)
    with pytest.raises(EngineDied, match=r"within 0.05 s \(GRISTMILL_START_TIMEOUT_S\)"):
        async with local_worker(settings, engine):
            pass


async def test_a_fault_of_ours_fails_that_request_alone(
    queue: Queue, client: Client, redis_url: str
) -> None:
    engine = FlakyEngine([RecursionError("too deep")] * 2)
    settings = settings_for(redis_url, queue, backoff_base_s=0.01, max_in_flight=1)
    async with local_worker(settings, engine):
        result = await client.wait(await client.submit(a_prompt("x", max_attempts=2)))
        assert (await client.wait(await client.submit(a_prompt("y")))).is_success
    assert result.failure == "worker_error: RecursionError('too deep')"
    assert [letter.reason for letter in await queue.dead_letters.newest()] == ["attempts_exhausted"]


class Unstarted(StubEngine):
    """Must not be started."""

    async def start(self) -> EngineInfo:
        raise AssertionError("the engine was started")


async def test_redis_is_asked_before_the_engine_starts(queue: Queue, redis_url: str) -> None:
    """An engine may take minutes to load; a wrong REDIS_URL is to be seen at once."""
    wrong = re.sub("//(.*@)?", "//nobody:wrong@", redis_url, count=1)
    with pytest.raises(AuthenticationError):
        await serve(settings_for(wrong, queue), Unstarted())


async def test_suspects_that_run_alone_follow_each_other_at_once(
    queue: Queue, client: Client, redis_url: str
) -> None:
    """The next may be claimed when the last is settled, not a poll later: here that would be 50 s."""
    suspects = prompts(6)
    await queue.submit(suspects)
    for name in ("first", "second"):
        dying = await open_worker(queue, name)
        assert len(await claim(queue, dying, max_suspects=6)) == 6
        await die(queue, dying)
    settings = settings_for(redis_url, queue, poll_interval_s=50, socket_timeout_s=60)
    async with local_worker(settings, StubEngine()):
        results = await collect(client, [request.id for request in suspects])
    assert {(result.status, result.attempt) for result in results.values()} == {("succeeded", 1)}

"""A closed loop on the stub: as many in flight as were asked for, and what goes wrong is told."""

import asyncio
from typing import Any

import pytest

from gristmill.bench.loads import LoadRequest, named
from gristmill.bench.tune.candidates import AUTO, Candidate, Setting
from gristmill.bench.tune.closed_loop import measure_point, measured_point
from gristmill.bench.tune.steady_load import endless
from gristmill.shared.errors import EngineDied, InvalidRequest
from gristmill.worker.engine import Response, StubEngine

CANDIDATE = Candidate(Setting(8, 2048), 6)
COMPLETIONS = "/v1/completions"


class Watched(StubEngine):
    """The stub, with what was in it at most, the salts of its prompts, and groups that were announced."""

    most = now = 0
    bodies: list[bytes]
    groups: list[int]

    def expect_group(self, number: int) -> None:
        self.groups = [*getattr(self, "groups", []), number]

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        self.bodies = [*getattr(self, "bodies", []), body]
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await super().post(endpoint, body, **options)
        finally:
            self.now -= 1


def a_load(number: int = 4) -> list[LoadRequest]:
    body = {"prompt": "a b c", "max_tokens": 5}
    return [LoadRequest(COMPLETIONS, body, 3, 5) for _ in range(number)]


async def started(token_delay_s: float = 0.002) -> Watched:
    engine = Watched(token_delay_s=token_delay_s)
    await engine.start()
    return engine


async def test_point_is_what_happened() -> None:
    engine = await started()
    point = await measure_point(engine, "stub", a_load(), CANDIDATE, max_s=0.6)
    assert engine.most == 6
    assert engine.now == 0  # nothing is left in flight
    assert point.candidate == CANDIDATE
    assert (point.failure, point.num_failed, point.preemptions) == ("", 0, 0)
    assert point.is_settled
    assert point.num_requests > 0
    assert point.output_tokens_per_s == pytest.approx(
        5 * point.num_requests / point.seconds, rel=0.2
    )
    assert point.p50_s is not None
    assert point.p95_s is not None
    # Four whole steps at least: the first of its five tokens comes at the end of the step that runs already.
    assert 4 * 0.002 <= point.p50_s <= point.p95_s


async def test_each_pass_over_the_sample_finds_nothing_of_the_one_before_in_the_prefix_cache() -> (
    None
):
    engine = await started()
    await measure_point(engine, "stub", a_load(3), CANDIDATE, max_s=0.2)
    passes = [engine.bodies[i : i + 3] for i in range(0, 6, 3)]
    assert [len(set(each)) for each in passes] == [1, 1]
    assert passes[0][0] != passes[1][0]


async def test_requests_that_outlast_the_point_leave_a_point_without_latencies() -> None:
    engine = await started(token_delay_s=60)
    point = await measure_point(
        engine, "stub", named("uniform", 4, scale=0.1), CANDIDATE, max_s=0.3
    )
    assert (point.num_requests, point.p95_s, point.is_settled) == (0, None, False)
    assert engine.now == 0


async def test_sample_that_the_engine_refuses_is_told() -> None:
    engine = await started()
    load = [LoadRequest("/v1/embeddings", {"input": "a"}, 1, 0)]
    with pytest.raises(InvalidRequest, match=r"refuses this sample: .*/v1/embeddings"):
        await measure_point(engine, "stub", load, CANDIDATE, max_s=10)


async def test_death_of_the_engine_is_told() -> None:
    engine = await started(token_delay_s=60)
    measuring = asyncio.create_task(measure_point(engine, "stub", a_load(), CANDIDATE, max_s=30))
    while engine.now < 6:
        await asyncio.sleep(0.01)
    engine.die()
    with pytest.raises(EngineDied, match="told to die"):
        await measuring


async def test_a_line_that_is_refused_does_not_stand_for_the_sample() -> None:
    engine = await started()
    load = [LoadRequest("/v1/embeddings", {"input": "a"}, 1, 0), *a_load(3)]
    alone = Candidate(Setting(8, 2048), 1)  # whose ramp ends with the first line
    point = await measure_point(engine, "stub", load, alone, max_s=0.6)
    assert 0 < point.num_failed < point.num_requests


async def test_gulps_fill_free_places_together() -> None:
    engine = await started()
    candidate = Candidate(Setting(8, 2048), 8, refill=4)
    point = await measure_point(engine, "stub", a_load(), candidate, max_s=0.8)
    assert (engine.most, engine.groups[0]) == (8, 8)  # first it fills all places
    assert min(engine.groups[1:]) >= 4
    assert 4 <= point.gulp_places <= 8
    assert engine.now == 0
    assert point.candidate == candidate


async def test_gulps_of_the_worker_follow_from_the_outputs() -> None:
    engine = await started()
    body = {"prompt": "a b c", "max_tokens": 32}
    load = [LoadRequest(COMPLETIONS, body, 3, 32)] * 4
    candidate = Candidate(Setting(32, 2048), 32, refill=AUTO)
    await measure_point(engine, "stub", load, candidate, max_s=0.8)
    assert min(engine.groups[1:]) >= 32 * (2 / 32) ** 0.5


async def test_load_runs_on_while_other_engines_are_measured() -> None:
    engine = await started()
    async with measured_point(engine, endless(a_load(), "stub"), CANDIDATE, 0.3) as point:
        num_posted = len(engine.bodies)
        while len(engine.bodies) < num_posted + 20:
            await asyncio.sleep(0.01)
        assert point.num_requests > 0
    assert engine.now == 0


async def test_death_while_other_engines_are_measured_is_told() -> None:
    engine = await started(token_delay_s=0.01)
    with pytest.raises(EngineDied, match="told to die"):
        async with measured_point(engine, endless(a_load(), "stub"), CANDIDATE, 0.3):
            engine.die()
            await asyncio.sleep(30)


def test_engines_side_by_side_run_different_requests() -> None:
    load = [LoadRequest(COMPLETIONS, {"prompt": str(i)}, 1, 1) for i in range(5)]
    first = [next(endless(load, "m", skip)).body for skip in (0, 3, 7)]
    assert [
        f'"{number}"'.encode() in body for number, body in zip((0, 3, 2), first, strict=True)
    ] == [True] * 3

"""One run: a load through the worker's own wiring, or straight into the engine."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from redis.exceptions import RedisError
from ulid import ULID

from gristmill.bench.arrivals import submit, until
from gristmill.bench.claims import Claims
from gristmill.bench.loads import LoadRequest
from gristmill.bench.observed import Observed, Seen
from gristmill.bench.records import Run, Timed
from gristmill.bench.sampler import Sampler
from gristmill.bench.setups import ALONE, Setup, worker_fields
from gristmill.shared.connection import connect
from gristmill.shared.errors import EngineDied, EngineError, GristmillError
from gristmill.shared.queue import Queue
from gristmill.shared.request import Request
from gristmill.shared.settings import read_settings
from gristmill.shared.tasks import end
from gristmill.worker.drain import Drain
from gristmill.worker.engine import EngineInfo
from gristmill.worker.liveness import Liveness
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.supervisor import Supervisor
from gristmill.worker.wiring import work

POLL_S = 0.02
"""Pause between two looks at the queue's counters; a run is timed no finer than this."""

TERMINAL = ("succeeded", "failed", "cancelled", "expired")
MAX_ERROR_CHARS = 300

Working = asyncio.Task[EngineDied | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What all runs share.

    Attributes:
        engine: Started.
        info: What its start returned.
        redis_url: Where the scratch queues live.
        batch_timeout_ms: Of the policies that wait to fill a batch.
        gpu: Tells the busy share of the GPU, if anybody can.
    """

    engine: Observed
    info: EngineInfo
    redis_url: str
    batch_timeout_ms: float
    gpu: Callable[[], float] | None = None


@dataclass(frozen=True, slots=True)
class _Course:
    """What a run took, and what was sampled meanwhile."""

    started_at: float
    seconds: float
    sampler: Sampler
    claims: Claims


async def run(
    stage: Stage,
    setup: Setup,
    load: Sequence[LoadRequest],
    due_s: Sequence[float],
    round_number: int,
) -> Run:
    """Run a load once.

    The prompts of each run are salted anew, so no run finds in vLLM's prefix cache what another left there.

    Args:
        stage: The engine and the Redis.
        setup: How.
        load: What.
        due_s: When each request is due, in seconds from the start; all 0 for all at once.
        round_number: For the record.

    Raises:
        EngineDied: It died, and did not come up again.
    """
    salt = str(ULID())
    requests = [one.request(stage.info.models[0], salt) for one in load]
    stage.engine.expect([request.body for request in requests])
    if setup.policy == ALONE:
        course = await _alone(stage, requests, due_s)
    else:
        course = await _queued(stage, setup, requests, due_s)
    seen = stage.engine.seen
    return Run(
        setup,
        round_number,
        course.seconds,
        [_timed(*each, course.started_at) for each in zip(seen, load, due_s, strict=True)],
        course.sampler.samples,
        course.claims.num_claimed,
        dict(course.claims.closed_by),
        course.sampler.grown,
        _first_error(seen),
    )


async def _alone(stage: Stage, requests: Sequence[Request], due_s: Sequence[float]) -> _Course:
    """Post each request to the engine when it is due, with nothing in between."""
    started_at = time.monotonic()

    async def one(request: Request, due_s: float) -> None:
        await until(started_at + due_s)
        await stage.engine.post(request.endpoint, request.body)

    async with Sampler(stage.engine, started_at, stage.gpu) as sampler:
        try:
            async with asyncio.TaskGroup() as posts:
                for pair in zip(requests, due_s, strict=True):
                    posts.create_task(one(*pair))
        except* EngineError as errors:
            raise errors.exceptions[0] from None
        seconds = time.monotonic() - started_at
    return _Course(started_at, seconds, sampler, Claims())


async def _queued(
    stage: Stage, setup: Setup, requests: Sequence[Request], due_s: Sequence[float]
) -> _Course:
    """Run them through a queue of its own and a worker; the clock starts with the worker."""
    settings = read_settings(
        WorkerSettings,
        redis_url=stage.redis_url,
        queue=f"bench-{ULID()}",
        **worker_fields(setup, stage.info, stage.batch_timeout_ms),
    )
    async with _scratch(settings) as queue:
        submitting = asyncio.create_task(submit(queue, requests, due_s))
        try:
            if not any(due_s):
                await submitting  # the worker meets a full queue
            before, started_at = Claims.so_far(), time.monotonic()
            async with (
                Sampler(stage.engine, started_at, stage.gpu) as sampler,
                _worker(settings, stage) as (working, liveness),
            ):
                await _until_terminal(queue, len(requests), liveness, working, submitting)
                seconds = time.monotonic() - started_at
        finally:
            await end(submitting)
    return _Course(started_at, seconds, sampler, Claims.so_far() - before)


@contextlib.asynccontextmanager
async def _scratch(settings: WorkerSettings) -> AsyncIterator[Queue]:
    """Open a queue for one run, which orders what waits as it is told; nothing of it is left afterwards."""
    redis = connect(settings.redis_url.get_secret_value(), settings.socket_timeout_s)
    queue = Queue(redis, settings.queue, settings.limits)
    try:
        await queue.register(
            "scheduling", {}, settings.scheduling_policy
        )  # submits put requests in their place
        await queue.deregister("scheduling")
        yield queue
    finally:
        with contextlib.suppress(RedisError):  # gone: so are the keys, or they expire
            async for key in redis.scan_iter(match=queue.keys.pattern, count=1000):
                await redis.unlink(key)
        await redis.aclose()


@contextlib.asynccontextmanager
async def _worker(
    settings: WorkerSettings, stage: Stage
) -> AsyncIterator[tuple[Working, Liveness]]:
    """Run a worker on the started engine for the length of a block; what it still holds goes back at once."""
    drain = Drain(0)
    liveness = Liveness(settings.stall_timeout_s, settings.lease_s, settings.stall_timeout_s)
    supervisor = Supervisor(stage.engine, settings, drain, liveness)
    working = asyncio.create_task(work(settings, supervisor, stage.info, drain, liveness))
    try:
        yield working, liveness
    finally:
        drain.start("the run is over")
        await asyncio.wait([working])


async def _until_terminal(
    queue: Queue,
    number: int,
    liveness: Liveness,
    working: Working,
    submitting: "asyncio.Task[None]",
) -> None:
    """Wait until so many requests have ended, as long as worker and submits go well."""
    num_ended = 0
    while num_ended < number:
        await asyncio.sleep(POLL_S)
        liveness.loop_ran()
        if submitting.done():
            submitting.result()
        if working.done():
            raise working.result() or GristmillError("the worker stopped before the load's end")
        counters = await queue.redis.hmget(queue.keys.stats, TERMINAL)
        num_ended = sum(int(counter or 0) for counter in counters)


def _timed(seen: Seen | None, one: LoadRequest, due_s: float, started_at: float) -> Timed:
    due_s = round(due_s, 4)
    if seen is None:
        return Timed(one.tenant, due_s)
    response = seen.response
    return Timed(
        one.tenant,
        due_s,
        round(seen.arrived_at - started_at, 4),
        round(seen.ended_at - started_at, 4),
        None if response.ttft_s is None else round(response.ttft_s, 4),
        response.status,
        response.prompt_tokens,
        response.output_tokens,
    )


def _first_error(seen: Sequence[Seen | None]) -> str:
    """Return what the engine said to the first request that it refused, or ""."""
    for each in seen:
        if each and each.response.status >= 400:
            return each.response.body[:MAX_ERROR_CHARS].decode(errors="replace")
    return ""

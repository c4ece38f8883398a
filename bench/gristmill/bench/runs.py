"""Run one load once, through a queue and a worker or straight into the engine."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from redis.exceptions import RedisError
from ulid import ULID

from gristmill.bench.arrivals import submit, until
from gristmill.bench.bench_report import RequestTiming, SetupRun
from gristmill.bench.claim_counters import ClaimCounters
from gristmill.bench.engine_sampler import EngineSampler
from gristmill.bench.loads import LoadRequest
from gristmill.bench.recording_engine import PostedRequest, RecordingEngine
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
"""Seconds between two reads of the queue's counters, and so the precision of a run's duration."""

TERMINAL = ("succeeded", "failed", "cancelled", "expired")
MAX_ERROR_CHARS = 300

Working = asyncio.Task[EngineDied | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Engine and Redis of all runs.

    Attributes:
        engine: The started engine.
        info: Facts that the engine's start returned.
        redis_url: Redis that holds the queues of the runs.
        batch_timeout_ms: Longest wait of the policies that wait to fill a batch.
        gpu: Returns the busy share of the GPU; None if it cannot be measured.
    """

    engine: RecordingEngine
    info: EngineInfo
    redis_url: str
    batch_timeout_ms: float
    gpu: Callable[[], float] | None = None


@dataclass(frozen=True, slots=True)
class _Measured:
    """Duration, samples and claims of a run."""

    started_at: float
    seconds: float
    sampler: EngineSampler
    claims: ClaimCounters


async def run_once(
    context: RunContext,
    setup: Setup,
    load: Sequence[LoadRequest],
    due_s: Sequence[float],
    round_number: int,
) -> SetupRun:
    """Run a load once.

    Each run salts its prompts, so that vLLM's prefix cache shares nothing between runs.

    Args:
        context: Engine and Redis of all runs.
        setup: Batch policy, scheduling and size.
        load: Requests to run.
        due_s: Submit time of each request in seconds from the start; all 0 submits all at once.
        round_number: Number of the round, from 1; 0 is the warm-up.

    Raises:
        EngineError: The engine died and did not start again, or its server does not answer.
        GristmillError: The worker stopped before the load's end.
    """
    salt = str(ULID())
    requests = [one.request(context.info.models[0], salt) for one in load]
    context.engine.expect([request.body for request in requests])
    if setup.policy == ALONE:
        measured = await _alone(context, requests, due_s)
    else:
        measured = await _queued(context, setup, requests, due_s)
    posted = context.engine.posted
    return SetupRun(
        setup,
        round_number,
        measured.seconds,
        [_timed(*each, measured.started_at) for each in zip(posted, load, due_s, strict=True)],
        measured.sampler.samples,
        measured.claims.num_claimed,
        dict(measured.claims.closed_by),
        measured.sampler.grown,
        _first_error(posted),
    )


async def _alone(
    context: RunContext, requests: Sequence[Request], due_s: Sequence[float]
) -> _Measured:
    """Post each request straight to the engine when it is due."""
    started_at = time.monotonic()

    async def one(request: Request, due_s: float) -> None:
        await until(started_at + due_s)
        await context.engine.post(request.endpoint, request.body)

    async with EngineSampler(context.engine, started_at, context.gpu) as sampler:
        try:
            async with asyncio.TaskGroup() as posts:
                for pair in zip(requests, due_s, strict=True):
                    posts.create_task(one(*pair))
        except* EngineError as errors:
            raise errors.exceptions[0] from None
        seconds = time.monotonic() - started_at
    return _Measured(started_at, seconds, sampler, ClaimCounters())


async def _queued(
    context: RunContext, setup: Setup, requests: Sequence[Request], due_s: Sequence[float]
) -> _Measured:
    """Run the requests through a new queue and a worker; the clock starts with the worker."""
    settings = read_settings(
        WorkerSettings,
        redis_url=context.redis_url,
        queue=f"bench-{ULID()}",
        **worker_fields(setup, context.info.max_num_seqs, context.batch_timeout_ms),
    )
    async with _scratch(settings) as queue:
        submitting = asyncio.create_task(submit(queue, requests, due_s))
        try:
            if not any(due_s):
                await submitting  # the worker meets a full queue
            before, started_at = ClaimCounters.so_far(), time.monotonic()
            async with (
                EngineSampler(context.engine, started_at, context.gpu) as sampler,
                _worker(settings, context) as (working, liveness),
            ):
                await _until_terminal(queue, len(requests), liveness, working, submitting)
                seconds = time.monotonic() - started_at
        finally:
            await end(submitting)
    return _Measured(started_at, seconds, sampler, ClaimCounters.so_far() - before)


@contextlib.asynccontextmanager
async def _scratch(settings: WorkerSettings) -> AsyncIterator[Queue]:
    """Open a queue for one run with the scheduling of the settings, and delete it afterwards."""
    redis = connect(settings.redis_url.get_secret_value(), settings.socket_timeout_s)
    queue = Queue(redis, settings.queue, settings.limits)
    try:
        await queue.register(
            "scheduling", {}, settings.scheduling_policy
        )  # submits sort requests by the order that a registration sets
        await queue.deregister("scheduling")
        yield queue
    finally:
        with contextlib.suppress(RedisError):  # if Redis is gone, so are the keys
            async for key in redis.scan_iter(match=queue.keys.pattern, count=1000):
                await redis.unlink(key)
        await redis.aclose()


@contextlib.asynccontextmanager
async def _worker(
    settings: WorkerSettings, context: RunContext
) -> AsyncIterator[tuple[Working, Liveness]]:
    """Run a worker on the started engine for a block.

    At the end, the worker releases its requests at once.
    """
    drain = Drain(0)
    liveness = Liveness(settings.stall_timeout_s, settings.lease_s, settings.stall_timeout_s)
    supervisor = Supervisor(context.engine, settings, drain, liveness)
    working = asyncio.create_task(work(settings, supervisor, context.info, drain, liveness))
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
    """Wait until `number` requests have ended; raise the error of the worker or of the submits."""
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


def _timed(
    posted: PostedRequest | None, one: LoadRequest, due_s: float, started_at: float
) -> RequestTiming:
    due_s = round(due_s, 4)
    if posted is None:
        return RequestTiming(one.tenant, due_s)
    response = posted.response
    return RequestTiming(
        one.tenant,
        due_s,
        round(posted.arrived_at - started_at, 4),
        round(posted.ended_at - started_at, 4),
        None if response.ttft_s is None else round(response.ttft_s, 4),
        response.status,
        response.prompt_tokens,
        response.output_tokens,
    )


def _first_error(posted: Sequence[PostedRequest | None]) -> str:
    """Return the first error answer of the engine, or ""."""
    for each in posted:
        if each and each.response.status >= 400:
            return each.response.body[:MAX_ERROR_CHARS].decode(errors="replace")
    return ""

"""One shift: what a worker does between one start of its engine and that engine's end.

`__main__.py` opens a shift after each start. Here lease, loop and watch are put together; each has a
file of its own.
"""

import asyncio
import os
import socket
from dataclasses import dataclass
from importlib.metadata import version

import structlog
from redis.exceptions import RedisError
from ulid import ULID

from gristmill.shared.connection import connect, retrying
from gristmill.shared.errors import EngineDied
from gristmill.shared.queue import Queue
from gristmill.shared.redis_url import redacted
from gristmill.shared.tasks import end
from gristmill.worker import metrics
from gristmill.worker.batching import BatchPolicy
from gristmill.worker.drain import Drain
from gristmill.worker.engine import Engine, EngineInfo
from gristmill.worker.leases import LeaseEvents, LeaseKeeper
from gristmill.worker.loop import Worker
from gristmill.worker.progress import Progress
from gristmill.worker.reports import report_queue
from gristmill.worker.settings import WorkerSettings

log = structlog.get_logger()

ENGINE_CHECK_S = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """Why a worker stopped, everything handed back.

    Attributes:
        death: What killed the engine, or None after a drain.
        num_settled: Requests that it had settled.
    """

    death: EngineDied | None
    num_settled: int


async def work(
    settings: WorkerSettings, engine: Engine, info: EngineInfo, drain: Drain, progress: Progress
) -> Ended:
    """Claim and run on a started engine until drained; everything of `serve` but signals and probes.

    Args:
        settings: Of this worker.
        engine: Started.
        info: What its start returned.
        drain: Tells when to stop.
        progress: Written here, read by the probes.

    Returns:
        Why it ended.
    """
    policy = BatchPolicy(
        settings.batch_policy,
        settings.batch_size,
        settings.batch_timeout_ms / 1000,
        settings.in_flight_limit(info.max_num_seqs),
    )
    _report_engine(info, policy)
    queue = open_queue(settings)
    facts = _worker_facts(info, policy)

    async def register() -> str:
        name = f"{socket.gethostname()[:48]}-{ULID()}"
        await retrying(lambda: queue.register(name, facts))
        leases.follow(name)
        progress.heard_redis()
        log.info(
            "worker.registered",
            worker=name,
            queue=settings.queue,
            max_in_flight=policy.max_in_flight,
        )
        return name

    worker = Worker(queue, engine, policy, settings, drain, register=register)
    events = LeaseEvents(
        worker.abort, lambda name: asyncio.ensure_future(worker.lease_lost(name)), report_queue
    )
    leases = LeaseKeeper(lambda: open_queue(settings), settings.beat_interval_s, progress, events)
    watching = asyncio.create_task(_watch(engine, worker, settings.stall_timeout_s))
    drain.on_start = lambda: progress.wait_for("what runs to end, then stopping")
    progress.wait_for(f"Redis at {redacted(settings.redis_url.get_secret_value())}")
    try:
        if await drain.unless_started(_greet(queue, settings)):
            progress.wait_for(None)
            leases.start()
            await worker.run()
    finally:
        progress.wait_for("the engine to start" if worker.engine_death.done() else "the end")
        await end(watching)
        await leases.stop()
        await queue.redis.aclose()
    death = worker.engine_death.result() if worker.engine_death.done() else None
    return Ended(death, worker.num_settled)


def _report_engine(info: EngineInfo, policy: BatchPolicy) -> None:
    model = info.models[0] if info.models else ""
    metrics.engine.labels(info.transport, model, info.device, info.dtype, info.vllm_version).set(1)
    metrics.max_in_flight.set(policy.max_in_flight)


def open_queue(settings: WorkerSettings) -> Queue:
    """Return the queue of the settings on connections of its own."""
    redis = connect(settings.redis_url.get_secret_value(), settings.socket_timeout_s)
    return Queue(redis, settings.queue, settings.limits)


async def _greet(queue: Queue, settings: WorkerSettings) -> bool:
    """Wait for Redis and warn of a configuration that loses requests; True once it answered."""
    url = redacted(settings.redis_url.get_secret_value())
    log.info("redis.connecting", url=url)
    await retrying(queue.redis.ping)
    try:
        policy = await queue.redis.config_get("maxmemory-policy")
    except RedisError:
        return True  # CONFIG is often forbidden; docs/operations.md says what to set
    if policy.get("maxmemory-policy") not in (None, "noeviction"):
        log.warning(
            "redis.evicts",
            url=url,
            remedy="CONFIG SET maxmemory-policy noeviction, or requests are lost",
        )
    return True


def _worker_facts(info: EngineInfo, policy: BatchPolicy) -> dict[str, str | int]:
    return {
        "version": version("gristmill"),
        "vllm_version": info.vllm_version,
        "transport": info.transport,
        "models": ",".join(info.models),
        "endpoints": ",".join(info.endpoints),
        "device": info.device,
        "num_devices": info.num_devices,
        "device_memory_bytes": info.device_memory_bytes,
        "dtype": info.dtype,
        "max_num_seqs": info.max_num_seqs,
        "max_model_len": info.max_model_len,
        "max_in_flight": policy.max_in_flight,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }


async def _watch(engine: Engine, worker: Worker, timeout_s: float) -> None:
    """Look at the engine's own pulse; its death ends the worker."""
    while True:
        await asyncio.sleep(ENGINE_CHECK_S)
        try:
            await engine.check(timeout_s)
        except EngineDied as death:
            worker.engine_died(death)
            return

"""One shift: what a worker does from the start of its engine to the last request handed back.

`__main__.py` opens it. Here lease, loop and supervision are put together; each has a file of its own.
"""

import asyncio
import os
import socket
from importlib.metadata import version

import structlog
from redis.exceptions import RedisError

from gristmill.shared.connection import connect, retrying
from gristmill.shared.errors import EngineDied
from gristmill.shared.queue import Queue
from gristmill.shared.redis_url import redacted
from gristmill.worker import metrics
from gristmill.worker.admission import Admission, Capacity
from gristmill.worker.batching import BatchPolicy
from gristmill.worker.drain import Drain
from gristmill.worker.engine import Engine, EngineInfo
from gristmill.worker.leases import LeaseEvents, LeaseKeeper
from gristmill.worker.loop import Worker
from gristmill.worker.progress import Progress
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.supervisor import Supervisor

log = structlog.get_logger()


async def work(
    settings: WorkerSettings,
    supervisor: Supervisor,
    info: EngineInfo,
    drain: Drain,
    progress: Progress,
) -> EngineDied | None:
    """Claim and run on a started engine until drained; everything of `serve` but signals and probes.

    Args:
        settings: Of this worker.
        supervisor: Of the engine, which is started.
        info: What its start returned.
        drain: Tells when to stop.
        progress: Written here, read by the probes.

    Returns:
        The death after which the engine was given up, or None after a drain; everything is handed back.
    """
    policy = BatchPolicy(
        settings.batch_policy,
        settings.batch_size,
        settings.batch_timeout_ms / 1000,
    )
    capacity = Capacity(
        settings.in_flight_limit(info.max_num_seqs), info.max_num_seqs, info.kv_cache_tokens
    )
    _report_engine(info, capacity)
    queue = open_queue(settings)
    facts = _worker_facts(info, capacity) | {"engine_args": _engine_args(supervisor.engine)}

    async def register(name: str) -> bool:
        await retrying(lambda: queue.register(name, facts, settings.policy))
        leases.follow(name)
        progress.heard_redis()
        log.info(
            "worker.registered",
            worker=name,
            queue=settings.queue,
            max_in_flight=capacity.max_in_flight,
        )
        return True

    admission = Admission(capacity, supervisor.engine.stats)
    worker = Worker(
        queue, supervisor, policy, settings, drain, admission=admission, register=register
    )
    events = LeaseEvents(
        aborted=worker.abort,
        lost=lambda name: asyncio.ensure_future(worker.lease_lost(name)),
        counted=worker.compare,
        seen=worker.see,
    )
    leases = LeaseKeeper(lambda: open_queue(settings), settings.beat_interval_s, progress, events)
    drain.on_start = lambda: progress.wait_for("what runs to end, then stopping")
    progress.wait_for(f"Redis at {redacted(settings.redis_url.get_secret_value())}")
    try:
        if await drain.unless_started(_greet(queue, settings)):
            progress.wait_for(None)
            leases.start()
            return await worker.run()
        return None
    finally:
        progress.wait_for("the end")
        await leases.stop()
        await queue.redis.aclose()


def _report_engine(info: EngineInfo, capacity: Capacity) -> None:
    model = info.models[0] if info.models else ""
    metrics.engine.labels(info.transport, model, info.device, info.dtype, info.vllm_version).set(1)
    metrics.max_in_flight.set(capacity.max_in_flight)


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


def _engine_args(engine: Engine) -> str:
    """What an engine was told, for the dead letter of a request that kills the whole worker."""
    return " ".join(engine.evidence().get("engine_args", ()))


def _worker_facts(info: EngineInfo, capacity: Capacity) -> dict[str, str | int]:
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
        "max_in_flight": capacity.max_in_flight,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }

"""Put one worker together: its context, its queues and its loop.

`__main__.py` calls `greet_redis` before the engine starts, and `work` once it has started.
"""

import os
import socket
from functools import partial
from importlib.metadata import version

import structlog

from gristmill.shared.connection import connect
from gristmill.shared.errors import EngineDied
from gristmill.shared.fleet import Served
from gristmill.shared.queue import Queue
from gristmill.shared.redis_eviction import warn_of_eviction
from gristmill.shared.redis_retry import retrying
from gristmill.shared.redis_url import redacted
from gristmill.shared.scripts import PROTOCOL
from gristmill.worker import metrics
from gristmill.worker.admission.capacity import Capacity, Demand, max_held
from gristmill.worker.admission.room import Admission
from gristmill.worker.batch_policy import BatchPolicy
from gristmill.worker.context import WorkerContext
from gristmill.worker.device_time import DeviceTime
from gristmill.worker.drain import Drain
from gristmill.worker.engine.interface import Engine, EngineInfo
from gristmill.worker.engine_limit import EngineLimit
from gristmill.worker.engine_load import EngineLoad
from gristmill.worker.liveness import Liveness
from gristmill.worker.loop import Worker
from gristmill.worker.provenance import Provenance
from gristmill.worker.queue_source import QueueSource
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.supervisor import Supervisor
from gristmill.worker.verdicts import backoff_s
from gristmill.worker.worker_brake import WorkerBrake

log = structlog.get_logger()


async def work(
    settings: WorkerSettings,
    supervisor: Supervisor,
    info: EngineInfo,
    drain: Drain,
    liveness: Liveness,
    *,
    num_sharing: int = 1,
) -> EngineDied | None:
    """Claim and run on a started engine until drained; `serve` handles signals and probes.

    Args:
        settings: The worker's settings.
        supervisor: Supervisor of the started engine.
        info: Facts about the engine, as its start returned them.
        drain: State of the drain: whether the worker must stop.
        liveness: Record that this function writes and the probes read.
        num_sharing: Engines that share this engine's devices, itself included.

    Returns:
        The engine's last death if the worker gave the engine up; None after a drain. The worker
        has then released its requests, unless Redis was away at the end.
    """
    policy = BatchPolicy(
        settings.batch_policy,
        settings.batch_size,
        settings.batch_timeout_ms / 1000,
    )
    capacity = Capacity(
        settings.in_flight_limit(info.max_num_seqs),
        info.max_num_seqs,
        info.kv_cache_tokens,
        settings.gulp(has_decode_graphs=info.has_decode_graphs),
        0 if policy.has_barrier else settings.high_share,
    )
    _report_engine(info, capacity)
    engine, provenance = supervisor.engine, Provenance(info)
    supervisor.on_start = provenance.note_start
    context = WorkerContext(
        settings=settings,
        engine=engine,
        admission=Admission(capacity, engine.stats, settings.max_in_flight_bytes),
        load=EngineLoad(),
        limit=EngineLimit(
            partial(backoff_s, base_s=settings.backoff_base_s, max_s=settings.backoff_max_s)
        ),
        brake=WorkerBrake(settings.backoff_base_s, settings.backoff_max_s, liveness),
        drain=drain,
        liveness=liveness,
        provenance=provenance,
        device_time=DeviceTime(
            max(1, info.num_devices) / num_sharing, partial(_processed_tokens, engine)
        ),
        served=Served(info.models, info.endpoints, info.max_model_len),
        facts=_worker_facts(info, capacity, _engine_args(engine)),
    )
    sources = [
        QueueSource(partial(open_queue, settings, name), weight, context)
        for name, weight in settings.queues.items()
    ]
    worker = Worker(sources, supervisor, policy, context)
    liveness.num_running = lambda: context.load.num_running
    drain.on_start = lambda: liveness.note_waiting("running requests to end before it stops")
    liveness.note_waiting(f"Redis at {redacted(settings.redis_url.get_secret_value())}")
    try:
        return await worker.run()
    finally:
        liveness.note_waiting("its process to end")


async def greet_redis(settings: WorkerSettings) -> bool:
    """Wait until Redis answers, check the queues' format, and warn of a configuration that loses requests. Return True.

    Call it before the engine starts. The start may take minutes, and a wrong REDIS_URL must show at
    once.

    Raises:
        WrongFormat: Another version wrote one of the queues.
        redis.exceptions.RedisError: Redis refuses the login or a right.
    """
    url = redacted(settings.redis_url.get_secret_value())
    log.info("redis.connecting", url=url)
    redis = connect(settings.redis_url.get_secret_value(), settings.socket_timeout_s)
    try:
        for name in (
            settings.queues
        ):  # the view of a queue needs rights that PING does not; it checks the format
            await retrying(Queue(redis, name, settings.limits).stats)
        await warn_of_eviction(redis, url)
    finally:
        await redis.aclose()
    return True


def open_queue(settings: WorkerSettings, name: str) -> Queue:
    """Return the queue `name` on new connections."""
    redis = connect(settings.redis_url.get_secret_value(), settings.socket_timeout_s)
    return Queue(redis, name, settings.limits)


def _report_engine(info: EngineInfo, capacity: Capacity) -> None:
    model = info.models[0] if info.models else ""
    metrics.engine.labels(info.transport, model, info.device, info.dtype, info.vllm_version).set(1)
    metrics.max_in_flight.set(max_held(capacity, Demand()))


def _processed_tokens(engine: Engine) -> int:
    stats = engine.stats()
    return stats.prompt_tokens + stats.output_tokens


def _engine_args(engine: Engine) -> str:
    """Return the engine's arguments, for dead letters of requests that kill the whole worker."""
    return " ".join(engine.evidence().get("engine_args", ()))


def _worker_facts(info: EngineInfo, capacity: Capacity, engine_args: str) -> dict[str, str | int]:
    return {
        **info.body_schemas,
        "engine_args": engine_args,
        "version": version("gristmill"),
        "protocol": PROTOCOL,
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
        "max_in_flight": max_held(capacity, Demand()),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }

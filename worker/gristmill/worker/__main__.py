"""Wiring of a worker process: engine, lease, loop, probes, signals, exit codes.

`gristmill worker` and `python -m gristmill.worker` both come here.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import structlog
import uvloop
from redis.exceptions import AuthenticationError, RedisError
from ulid import ULID

from gristmill.shared.connection import connect, redacted, retrying
from gristmill.shared.errors import EngineDied, GristmillError, SettingsError
from gristmill.shared.log import configure_logging
from gristmill.shared.queue import Queue
from gristmill.shared.settings import read_settings
from gristmill.shared.tasks import end
from gristmill.worker import metrics
from gristmill.worker.batching import BatchPolicy
from gristmill.worker.drain import Drain
from gristmill.worker.engine import Engine, EngineInfo, engine_from
from gristmill.worker.health import HealthServer
from gristmill.worker.leases import LeaseEvents, LeaseKeeper
from gristmill.worker.loop import Worker
from gristmill.worker.progress import Progress
from gristmill.worker.reports import report_queue
from gristmill.worker.settings import WorkerSettings

log = structlog.get_logger()

EXIT_OK, EXIT_ENGINE, EXIT_SETTINGS = 0, 1, 2

MAX_DEATHS = 3
"""Deaths of the engine with nothing settled in between after which the process ends."""

LOOP_TICK_S = 1.0
ENGINE_CHECK_S = 5.0
REDIS_SILENCE_BEATS = 5
"""Beats without an answer after which Redis counts as away."""


def run_worker(settings: WorkerSettings, engine_argv: Sequence[str]) -> int:
    """Run a worker until it is told to stop.

    Args:
        settings: Of this worker.
        engine_argv: vLLM's own flags, what follows `--`.

    Returns:
        0 after a drain; 1 if the engine could not start or died; 2 if a setting is wrong.
    """
    configure_logging(settings.log_level)
    key = settings.vllm_api_key.get_secret_value() if settings.vllm_api_key else None
    try:
        engine = engine_from(settings.vllm_url, engine_argv, api_key=key)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(settings, engine))
    except (SettingsError, AuthenticationError) as error:
        log.error("settings.rejected", error=str(error))  # noqa: TRY400  # a message for people
        return EXIT_SETTINGS


async def serve(settings: WorkerSettings, engine: Engine) -> int:
    """Start the engine, then claim until drained; returns the exit code.

    Raises:
        SettingsError: A setting is wrong, or the port of the probes is taken.
    """
    drain = Drain(settings.drain_timeout_s)
    drain.install()
    progress = Progress(settings.stall_timeout_s, settings.beat_s * REDIS_SILENCE_BEATS)
    health = _open_health(settings, progress)
    ticking = asyncio.create_task(_tick(progress))
    log.info("worker.starting", version=version("gristmill"), health_port=health.port)
    try:
        return await _work_through_deaths(settings, engine, drain, progress)
    except EngineDied as death:
        log.error("engine.not_started", error=str(death))  # noqa: TRY400  # its message carries the reason
        return EXIT_ENGINE
    finally:
        await engine.close()
        await end(ticking)
        health.close()


async def _work_through_deaths(
    settings: WorkerSettings, engine: Engine, drain: Drain, progress: Progress
) -> int:
    """Work until drained; an engine that dies is built anew, unless it dies again and again for nothing."""
    num_deaths = 0
    info = await drain.unless_started(engine.start())
    while info is not None:
        ended = await work(settings, engine, info, drain, progress)
        if ended.death is None:
            return EXIT_OK
        num_deaths = 1 if ended.num_settled else num_deaths + 1
        log.error(
            "engine.died",
            error=str(ended.death),
            num_deaths=num_deaths,
            num_settled=ended.num_settled,
        )
        if num_deaths == MAX_DEATHS:
            return EXIT_ENGINE
        info = await drain.unless_started(engine.start())
    return EXIT_OK


def _open_health(settings: WorkerSettings, progress: Progress) -> HealthServer:
    try:
        health = HealthServer(progress, settings.health_host, settings.health_port)
    except OSError as error:
        message = f"the probes cannot listen on port {settings.health_port} ({error}); set GRISTMILL_HEALTH_PORT"
        raise SettingsError(message) from error
    health.start()
    return health


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
    leases = LeaseKeeper(lambda: open_queue(settings), settings.beat_s, progress, events)
    watching = asyncio.create_task(_watch(engine, worker, settings.stall_timeout_s))
    drain.on_start = progress.stop_claiming
    try:
        if await drain.unless_started(_greet(queue, settings)):
            progress.is_claiming = True
            leases.start()
            await worker.run()
    finally:
        progress.is_claiming = False
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


async def _tick(progress: Progress) -> None:
    """Note that the loop runs."""
    while True:
        progress.loop_ran()
        await asyncio.sleep(LOOP_TICK_S)


async def _watch(engine: Engine, worker: Worker, timeout_s: float) -> None:
    """Look at the engine's own pulse; its death ends the worker."""
    while True:
        await asyncio.sleep(ENGINE_CHECK_S)
        try:
            await engine.check(timeout_s)
        except EngineDied as death:
            worker.engine_died(death)
            return


def main(argv: Sequence[str]) -> int:
    """Run a worker on the settings of the environment."""
    try:
        engine_argv = argv[1:] if argv[:1] == ["--"] else argv
        return run_worker(read_settings(WorkerSettings), engine_argv)
    except GristmillError as error:
        sys.stderr.write(f"gristmill worker: {error}\n")
        return EXIT_SETTINGS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

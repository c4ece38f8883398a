"""A worker process from start to exit: signals, probes, exit codes.

`gristmill worker` and `python -m gristmill.worker` both come here.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import version

import structlog
import uvloop
from redis.exceptions import RedisError

from gristmill.shared.errors import EngineDied, GristmillError, SettingsError
from gristmill.shared.log import configure_logging
from gristmill.shared.redis_retry import announce_redis_waits
from gristmill.shared.redis_trouble import remedy, trouble
from gristmill.shared.redis_url import redacted
from gristmill.shared.settings import read_settings
from gristmill.shared.tasks import end
from gristmill.shared.tracing import Tracing, start_tracing
from gristmill.worker import metrics
from gristmill.worker.drain import Drain
from gristmill.worker.engine.factory import engine_from
from gristmill.worker.engine.interface import Engine
from gristmill.worker.exit_codes import EXIT_ENGINE, EXIT_OK, EXIT_SETTINGS
from gristmill.worker.health import HealthServer, port_errors
from gristmill.worker.liveness import Liveness
from gristmill.worker.parent import ParentLink, Report, planned_children, run_parent
from gristmill.worker.pod_cost import start_pod_cost
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.supervisor import Supervisor
from gristmill.worker.wiring import greet_redis, work

log = structlog.get_logger()

LOOP_TICK_S = 1.0
"""Seconds between two signs of life of the event loop."""

REDIS_SILENCE_BEATS = 5
"""Heartbeats without an answer after which the worker reports Redis as away."""

ENGINE_SILENCE_S = 10.0
"""Seconds without an answer from the engine after which the worker is not ready."""


def run_worker(settings: WorkerSettings, engine_argv: Sequence[str]) -> int:
    """Run a worker in this process, or a parent of several workers, until a signal stops it.

    Args:
        settings: The worker's settings.
        engine_argv: vLLM's own flags: the words after `--`.

    Returns:
        The exit code; see `run_with_engine`.

    Raises:
        SettingsError: The settings name no engine or two engines, or devices that do not fit.
    """
    engine = engine_from(settings, engine_argv)
    children = planned_children(settings, engine_argv)
    if len(children) > 1:
        return run_parent(settings, children)
    os.environ.update(children[0].environment)
    return run_with_engine(settings, engine)


def run_with_engine(
    settings: WorkerSettings, engine: Engine, parent: ParentLink | None = None
) -> int:
    """Run a worker with an engine that has not started, until a signal stops it.

    Args:
        settings: The worker's settings.
        engine: The engine.
        parent: Link to the parent, if this worker is one of several.

    Returns:
        0 after a drain. 1 if the engine could not start or kept dying. 2 if a setting is wrong or
        Redis refuses the login or a command.
    """
    configure_logging(settings.log_level, {"engine": parent.engine} if parent else None)
    announce_redis_waits(settings.redis_url.get_secret_value())
    tracing: Tracing | None = None
    try:
        tracing = start_tracing("gristmill-worker", metrics.lost_spans.inc)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(settings, engine, parent))
    except SettingsError as error:
        log.error("settings.rejected", error=str(error))  # noqa: TRY400  # a message for people
        return EXIT_SETTINGS
    except RedisError as error:  # what ends by itself, the worker has waited for
        url = redacted(settings.redis_url.get_secret_value())
        message = f"Redis {trouble(error)}"
        log.error("redis.refused", url=url, error=message, remedy=remedy(error))  # noqa: TRY400  # for people
        return EXIT_SETTINGS
    finally:
        if tracing:
            tracing.stop()


async def serve(settings: WorkerSettings, engine: Engine, parent: ParentLink | None = None) -> int:
    """Start the engine, claim until drained, and return the exit code.

    Raises:
        SettingsError: A setting is wrong, or another process uses the probes' port.
        redis.exceptions.RedisError: Redis refuses the login or a command.
    """
    drain = Drain(settings.drain_timeout_s)
    drain.install()
    liveness = Liveness(
        settings.stall_timeout_s, settings.beat_interval_s * REDIS_SILENCE_BEATS, ENGINE_SILENCE_S
    )
    start_turn = parent.start_turn if parent else nullcontext
    supervisor = Supervisor(engine, settings, drain, liveness, start_turn)
    costing = start_pod_cost(settings.pod_name, lambda: liveness.num_running())  # noqa: PLW0108  # `work` replaces it
    with port_errors(settings.health_port):
        health = HealthServer(liveness, settings.health_host, settings.health_port)
    health.start()
    ticking = asyncio.create_task(_tick(liveness, health.port, parent))
    log.info("worker.starting", version=version("gristmill"), health_port=health.port)
    try:
        liveness.note_waiting(f"Redis at {redacted(settings.redis_url.get_secret_value())}")
        if not await drain.unless_started(greet_redis(settings)):
            return EXIT_OK
        liveness.note_waiting("the engine to start")
        info = await drain.unless_started(supervisor.start())
        if info is None:
            return EXIT_OK
        num_sharing = parent.num_sharing if parent else 1
        death = await work(settings, supervisor, info, drain, liveness, num_sharing=num_sharing)
    except EngineDied as error:
        log.error("engine.not_started", error=str(error))  # noqa: TRY400  # its message carries the reason
        return EXIT_ENGINE
    else:
        return EXIT_OK if death is None else EXIT_ENGINE
    finally:
        await engine.close()
        await end(ticking, costing)
        health.close()


async def _tick(liveness: Liveness, health_port: int, parent: ParentLink | None) -> None:
    """Note once a second that the event loop runs, and report the state to the parent, if any."""
    while True:
        liveness.loop_ran()
        if parent:
            parent.report(
                Report(
                    health_port,
                    liveness.unready_reason(),
                    liveness.num_settled,
                    liveness.num_running(),
                )
            )
        await asyncio.sleep(LOOP_TICK_S)


def main(argv: Sequence[str]) -> int:
    """Run a worker with settings from the environment; return its exit code."""
    try:
        engine_argv = argv[1:] if argv[:1] == ["--"] else argv
        return run_worker(read_settings(WorkerSettings), engine_argv)
    except GristmillError as error:
        sys.stderr.write(f"gristmill worker: {error}\n")
        return EXIT_SETTINGS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Start the workers of this machine for one command: `gristmill run` and the demo.

The workers are one `gristmill worker`, which runs all engines. It ends with the command.
"""

import asyncio
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from gristmill.local.processes import (
    POLL_INTERVAL_S,
    LoggedProcess,
    answers,
    free_port,
    running_process,
)
from gristmill.local.steps import step
from gristmill.producer.commands.run_workers import WatchWorkers
from gristmill.shared.cli import say
from gristmill.shared.errors import GristmillError
from gristmill.shared.install import cpu_install_hint, install_hint
from gristmill.shared.settings import QueueSettings
from gristmill.worker.flag_secrets import without_secrets

GRACE_S = 30.0
"""Seconds between the request to stop and the kill; an engine on a GPU takes a few to end."""


def check_packages(command: str, extra: str, make_target: str) -> None:
    """Check that this environment has what a worker with an engine needs.

    Args:
        command: Name of the command, for the message.
        extra: Extra of Gristmill that the command needs, too.
        make_target: Target of a checkout's Makefile that installs both for a CPU.

    Raises:
        GristmillError: A package is missing; the message says how to install it.
    """
    missing = [name for name in ("vllm", "prometheus_client", "psutil") if find_spec(name) is None]
    if missing:
        raise GristmillError(
            f"{command} runs a worker, which needs {', '.join(missing)}; with an NVIDIA GPU,"
            f" {install_hint('gpu', extra)}; without one, {cpu_install_hint(make_target, extra)}"
        )


@contextmanager
def running_workers(
    settings: QueueSettings,
    flags: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    *,
    options: Sequence[str] = (),
    server: LoggedProcess | None = None,
) -> Iterator[WatchWorkers]:
    """Run workers for the length of a block, which begins when the first engine is ready.

    Args:
        settings: Redis and queue of the workers.
        flags: vLLM's own flags.
        log: File for the output of the workers; an existing file is overwritten.
        environment: More variables for the workers.
        options: Options of `gristmill worker`.
        server: The embedded Redis; None if others run the Redis.

    Yields:
        Coroutine function that raises a GristmillError once the workers or the server have ended.

    Raises:
        GristmillError: A process has ended; the message has the end of its log.
    """
    port = free_port()
    words = ["worker", *options, "--", *flags]
    say(f"  running: gristmill {shlex.join(without_secrets(words))}; log: {log}")
    with ExitStack() as stack:
        with step("starting the worker and its engine") as shown:
            worker = stack.enter_context(
                running_process(
                    "the worker",
                    [sys.executable, "-m", "gristmill.shared.cli", *words],
                    log,
                    _environment(settings, port) | dict(environment),
                    GRACE_S,
                )
            )
            processes = [worker] if server is None else [worker, server]
            while not answers(port, "/readyz"):
                _check(processes)
                shown.tick()
                time.sleep(POLL_INTERVAL_S)
        yield partial(_until_one_ends, processes)


def _environment(settings: QueueSettings, port: int) -> dict[str, str]:
    """Return the variables with which the workers serve this queue until the command stops them at once."""
    return {
        "GRISTMILL_REDIS_URL": settings.redis_url.get_secret_value(),
        "GRISTMILL_QUEUE": settings.queue,
        "GRISTMILL_UNTIL_EMPTY": "false",  # the command's environment may ask for it
        "GRISTMILL_HEALTH_HOST": "127.0.0.1",
        "GRISTMILL_HEALTH_PORT": str(port),
        "GRISTMILL_DRAIN_TIMEOUT_S": "0",  # the command that would write the rows ends
    }


def _check(processes: Sequence[LoggedProcess]) -> None:
    for process in processes:
        process.check()


async def _until_one_ends(processes: Sequence[LoggedProcess]) -> NoReturn:
    while True:
        _check(processes)
        await asyncio.sleep(POLL_INTERVAL_S)

"""Run the parent of several workers from start to exit: signals, probes, exit code."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from tempfile import TemporaryFile

import structlog

from gristmill.shared.log import configure_logging
from gristmill.shared.tasks import end
from gristmill.worker.exit_codes import EXIT_OK, EXIT_SETTINGS
from gristmill.worker.health import port_errors
from gristmill.worker.parent.child import Child
from gristmill.worker.parent.child_plan import ChildPlan
from gristmill.worker.parent.child_process import ENGINE_CHILD, ChildStart
from gristmill.worker.parent.orphans import reap_orphans
from gristmill.worker.parent.parent_probes import ParentProbes
from gristmill.worker.pod_cost import start_pod_cost
from gristmill.worker.settings import WorkerSettings

log = structlog.get_logger()

KILL_S = 10.0
"""Seconds after the grace period of a drain until the parent kills what still runs.

Workers release their requests in this time, and close their engines.
"""


REAP_S = 30.0
"""Seconds between two looks for dead processes of dead workers."""


def run_parent(
    settings: WorkerSettings, plans: Sequence[ChildPlan], command: Sequence[str] = ENGINE_CHILD
) -> int:
    """Run several workers until a signal stops them.

    Args:
        settings: The workers' settings.
        plans: Plans of the workers.
        command: Command of a worker's process, without arguments.

    Returns:
        0 after a drain. 1 if an engine could not start or kept dying, and 2 if a setting is wrong or
        Redis refuses; see `Child` for the rule.

    Raises:
        SettingsError: Another process uses the probes' port.
    """
    configure_logging(settings.log_level)
    with ExitStack() as files:
        turns = {
            group: files.enter_context(TemporaryFile()).fileno()
            for group in sorted({plan.group for plan in plans})
        }
        environment = child_environment(settings)
        starts = [ChildStart(command, environment, turns[plan.group]) for plan in plans]
        return asyncio.run(_Parent(settings, plans, starts).run())


def child_environment(settings: WorkerSettings) -> Mapping[str, str]:
    """Return the environment of a worker's process: the parent's, with options of the command line."""
    return os.environ | {
        "GRISTMILL_REDIS_URL": settings.redis_url.get_secret_value(),
        "GRISTMILL_QUEUE": settings.queue,
        "GRISTMILL_UNTIL_EMPTY": str(settings.until_empty).lower(),
        "GRISTMILL_HEALTH_HOST": "127.0.0.1",
        "GRISTMILL_HEALTH_PORT": "0",
        "GRISTMILL_POD_NAME": "",
    }


class _Parent:
    """The workers of one command, and what stops them together."""

    def __init__(
        self, settings: WorkerSettings, plans: Sequence[ChildPlan], starts: Sequence[ChildStart]
    ) -> None:
        self._stopping = asyncio.Event()
        self._kill_s = settings.drain_timeout_s + KILL_S
        self._pod_name = settings.pod_name
        self._children = [
            Child(plan, start, settings, self._stopping, self._has_sibling_up)
            for plan, start in zip(plans, starts, strict=True)
        ]
        with port_errors(settings.health_port):
            self._probes = ParentProbes(self._children, settings.health_host, settings.health_port)

    async def run(self) -> int:
        """Keep all workers alive until a signal comes, one is given up or all have finished; return the exit code."""
        self._handle_signals()
        costing = start_pod_cost(
            self._pod_name, lambda: sum(child.num_running for child in self._children)
        )
        self._probes.start()
        log.info(
            "engines.starting",
            num_engines=len(self._children),
            version=version("gristmill"),
            health_port=self._probes.port,
        )
        running = [asyncio.create_task(child.run()) for child in self._children]
        reaping = asyncio.create_task(self._reap())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            code = await _first_failure(running, stopping)
            if code != EXIT_OK:
                self._give_up(code)
            await self._wait_for_ends(running)
        finally:
            await end(reaping, stopping, costing)
            self._probes.close()
        return code

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, signal.Signals(number).name)

    def _stop(self, reason: str) -> None:
        """Drain all workers; a second call ends their grace periods, as a second signal does."""
        log.info("engines.draining", reason=reason)
        self._stopping.set()
        for child in self._children:
            child.send_signal(signal.SIGTERM)

    def _give_up(self, code: int) -> None:
        words = (
            "a setting is wrong"
            if code == EXIT_SETTINGS
            else "an engine does not start or keeps dying"
        )
        self._probes.note_given_up(f"{words}; its log says why")
        self._stop(words)

    async def _wait_for_ends(self, running: "Sequence[asyncio.Task[int]]") -> None:
        _, hanging = await asyncio.wait(running, timeout=self._kill_s)
        if hanging:
            log.error("engines.killed", num_engines=len(hanging), after_s=self._kill_s)
            for child in self._children:
                child.send_signal(signal.SIGKILL)
            await asyncio.wait(hanging)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(REAP_S)
            if not any(child.is_starting for child in self._children):  # its id is not known yet
                reap_orphans({child.pid for child in self._children})

    def _has_sibling_up(self, child: Child) -> bool:
        return any(other.is_up for other in self._children if other is not child)


async def _first_failure(
    running: "Sequence[asyncio.Task[int]]", stopping: "asyncio.Task[bool]"
) -> int:
    """Wait for a worker that is given up, for the end of all workers or for a signal; return the exit code.

    A worker that has found its queue empty ends with 0, and the others go on.
    """
    left = set(running)
    while left and not stopping.done():
        await asyncio.wait([stopping, *left], return_when=asyncio.FIRST_COMPLETED)
        ended = {task for task in left if task.done()}
        left -= ended
        if code := max((task.result() for task in ended), default=EXIT_OK):
            return code
    return EXIT_OK

"""Start one engine, watch it while it runs, and restart it when it dies.

The worker keeps its process and its leases when the engine dies, so a death costs only the time of
one start. The worker ends when the deaths are hopeless (`death_count.py`). A failed restart counts as a
death.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext

import structlog

from gristmill.shared.errors import EngineDied
from gristmill.worker import metrics
from gristmill.worker.death_count import DeathCount
from gristmill.worker.drain import Drain
from gristmill.worker.engine.interface import Engine, EngineInfo
from gristmill.worker.liveness import Liveness
from gristmill.worker.settings import WorkerSettings

log = structlog.get_logger()

CHECK_S = 2.0
"""Seconds between two checks of the engine."""


class Supervisor:
    """Keeps one engine alive.

    Args:
        engine: The engine; `start` starts it.
        settings: The worker's settings, with the timeouts and the backoff.
        drain: The drain; it ends the restarts.
        liveness: Record of what the worker waits for and of the engine's signs of life.
        start_turn: Returns a context in which the engine may start; it waits while another engine
            of the same devices starts.

    Attributes:
        on_start: Called with the engine's description after each start.
    """

    def __init__(
        self,
        engine: Engine,
        settings: WorkerSettings,
        drain: Drain,
        liveness: Liveness,
        start_turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self.engine = engine
        self._settings = settings
        self._drain = drain
        self._liveness = liveness
        self._start_turn = start_turn
        self.on_start: Callable[[EngineInfo], None] = lambda _: None
        self._deaths = DeathCount(settings.backoff_base_s, settings.backoff_max_s)
        self._num_settled = 0

    async def start(self) -> EngineInfo:
        """Start the engine, in its turn, within `start_timeout_s`.

        Raises:
            SettingsError: The engine's arguments are wrong.
            EngineDied: The engine did not start, or not in time.
        """
        limit_s = self._settings.start_timeout_s
        try:
            async with self._start_turn(), asyncio.timeout(limit_s) as scope:
                info = await self.engine.start()
        except TimeoutError as error:
            if not scope.expired():
                raise
            message = (
                f"the engine did not start within {limit_s:g} s (GRISTMILL_START_TIMEOUT_S); "
                "raise it if the model takes longer to load"
            )
            raise EngineDied(message) from error
        self._liveness.heard_engine()
        self.on_start(info)
        return info

    async def watch(self) -> EngineDied:
        """Check the engine every `CHECK_S` seconds until it is dead; return the death.

        An engine that holds requests and yields no token for the stall timeout counts as dead.
        """
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self.engine.check(self._settings.stall_timeout_s)
            except EngineDied as death:
                return death
            self._liveness.heard_engine()

    async def revive(self, death: EngineDied, num_settled: int) -> bool:
        """Restart the engine, with growing pauses between failed starts.

        Args:
            death: The death of the engine.
            num_settled: Requests whose results were written so far. If it has grown since the last
                call, the count of deaths starts at 0.

        Returns:
            True if the engine lives; False if the worker drains, or if the deaths are hopeless.
        """
        has_settled, self._num_settled = num_settled > self._num_settled, num_settled
        self._liveness.note_waiting("the engine to start anew")
        while not self._drain.is_draining:
            self._deaths.add(has_settled=has_settled)
            has_settled = False
            metrics.engine_deaths.inc()
            is_last = self._deaths.is_hopeless
            pause_s = 0.0 if is_last else self._deaths.pause_s()
            log.error(
                "engine.died",
                error=str(death),
                num_deaths=self._deaths.number,
                num_settled=num_settled,
                pause_s=round(pause_s, 3),
            )
            if is_last:
                return False
            try:
                if await self._drain.unless_started(self._restart(pause_s)):
                    self._liveness.note_waiting(None)
                    return True
            except EngineDied as error:
                death = error
        return False

    async def _restart(self, pause_s: float) -> EngineInfo:
        await asyncio.sleep(pause_s)
        return await self.start()

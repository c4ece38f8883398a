"""Run one engine at a time, measure on it, and record how long each start took."""

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from gristmill.bench.progress_display import waiting
from gristmill.bench.tune.budget import Budget
from gristmill.bench.tune.candidates import Candidate, Setting
from gristmill.bench.tune.engine_flags import flags, setting_of
from gristmill.bench.tune.engine_process import EngineProcess
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.shared.cli import say
from gristmill.shared.errors import EngineDied


@dataclass(frozen=True, slots=True)
class EngineStart:
    """One start of an engine.

    Attributes:
        setting: Setting of the engine; None if it failed before its defaults were known.
        seconds: Duration of the start.
        failure: Reason of a failed start; "" for a successful one.
    """

    setting: Setting | None
    seconds: float
    failure: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it for the record."""
        return asdict(self)


@dataclass(slots=True)
class EngineRunner:
    """Starts engines, one at a time, and measures on them.

    Attributes:
        argv: The user's flags.
        sample: Load to run.
        folder: Folder for the logs of the engines.
        budget: Time budget; the runner notes in it how long each start and end took.
        starts: All starts so far.
    """

    argv: Sequence[str]
    sample: LoadSample
    folder: Path
    budget: Budget
    starts: list[EngineStart] = field(default_factory=list)
    _engine: EngineProcess | None = None
    _setting: Setting | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def has_time(self, setting: Setting) -> bool:
        """Return whether the budget allows another point, with an engine start if it needs one."""
        return self.budget.has_time(time.monotonic(), is_start=self._setting != setting)

    async def start(self, setting: Setting | None, timeout_s: float) -> dict[str, Any]:
        """End the running engine, start another, and return its `EngineInfo`.

        Args:
            setting: Setting whose flags follow the user's flags; None for the user's flags alone.
            timeout_s: Longest start in seconds.

        Raises:
            EngineDied: The engine did not start. `starts` has this start too.
        """
        await self.close()
        started_at = time.monotonic()
        log = self.folder / f"engine-{len(self.starts) + 1:02}.log"
        trial = EngineProcess([*self.argv, *flags(setting)], self.sample, log)
        self._engine = await self._stack.enter_async_context(trial)
        failure = ""
        try:
            async with waiting(f"starting engine {len(self.starts) + 1} (its log: {log})"):
                info = await self._engine.start(timeout_s)
            self._setting = setting or setting_of(info)
        except EngineDied as error:
            failure = str(error)
            await self.close()
            raise
        finally:
            seconds = time.monotonic() - started_at
            self.budget.took_start(seconds)
            self.starts.append(EngineStart(setting or self._setting, seconds, failure))
        say(f"  engine {len(self.starts)}: {self._setting}, started in {seconds:.0f} s")
        return info

    async def measure(self, candidate: Candidate) -> MeasuredPoint:
        """Measure a point, on a new engine if the setting differs.

        A failure gives a point with the reason.
        """
        if self._setting != candidate.setting:
            try:
                await self.start(candidate.setting, self.budget.left_s(time.monotonic()))
            except EngineDied as error:
                return MeasuredPoint(candidate, f"the engine did not start: {error}")
        assert self._engine is not None  # noqa: S101  # start has set it
        left_s = self.budget.left_s(time.monotonic())
        point = await self._engine.measure(candidate, max(1.0, min(self.budget.point_s, left_s)))
        if point.failure:
            await self.close()
        return point

    async def close(self) -> None:
        """End the running engine, if there is one."""
        if self._engine is None:
            return
        closed_at = time.monotonic()
        self._engine = self._setting = None
        await self._stack.aclose()
        self.budget.took_close(time.monotonic() - closed_at)

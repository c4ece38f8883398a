"""Run engines side by side on a device, measure on them, and record how long each start took.

The engines start one after another: vLLM measures the free memory during a start, and two starts at
the same time would count each other's memory.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Self

from gristmill.bench.progress_display import waiting
from gristmill.bench.tune.candidates import Candidate, Setting
from gristmill.bench.tune.engine_flags import flags, setting_of
from gristmill.bench.tune.engine_process import EngineProcess
from gristmill.bench.tune.engine_share import share_of
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.measured_point import MeasuredPoint, together
from gristmill.bench.tune.slots import Slots
from gristmill.bench.tune.time_plan import TimePlan
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


@dataclass(frozen=True, slots=True)
class _Engine:
    """A running engine.

    Attributes:
        setting: Its setting.
        process: Its process.
        place: Number, from 0, of its part of the device.
    """

    setting: Setting
    process: EngineProcess
    place: int


@dataclass(slots=True)
class EnginePool:
    """The engines on a device.

    Attributes:
        argv: The user's flags.
        sample: Load to run.
        folder: Folder for the logs of the engines.
        plan: Time and slots; the pool notes in it how long each start and end took.
        starts: All starts so far.
        is_cpu: True once the device is known to be a CPU.
    """

    argv: Sequence[str]
    sample: LoadSample
    folder: Path
    plan: TimePlan
    starts: list[EngineStart] = field(default_factory=list)
    is_cpu: bool = False
    _running: list[_Engine] = field(default_factory=list)
    _spare: EngineProcess | None = None
    _best: Candidate | None = None
    _num_spawned: int = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def devices(self, timeout_s: float) -> dict[str, Any]:
        """Return the machine's `Devices` as a dictionary; the first engine's process finds them.

        Raises:
            EngineDied: vLLM cannot be loaded.
        """
        async with waiting("loading vLLM"):
            self._spare = self._spare or await self._spawned()
            devices = await self._spare.devices(timeout_s)
        self.is_cpu = devices["kind"] == "cpu"
        return devices

    def has_time(self, candidate: Candidate, best: Candidate | None) -> bool:
        """Return whether a candidate can be measured, with time left to compare the best."""
        self._best = best
        return self.plan.has_time(candidate, best, time.monotonic())

    def fits(self, candidates: Sequence[Candidate]) -> bool:
        """Return whether these candidates can be measured one after another."""
        return self.plan.fits(candidates, time.monotonic())

    def turns(self, best: Candidate) -> list[Candidate]:
        """Return the order in which to compare the best with the start."""
        self._best = None  # from here on no start leaves time for a later comparison
        return self.plan.turns(best, time.monotonic())

    async def start(
        self, setting: Setting | None, timeout_s: float, slots: int = 1
    ) -> dict[str, Any]:
        """Start one more engine, and return its `EngineInfo`.

        Args:
            setting: Setting whose flags follow the user's flags; None for the user's flags alone.
            timeout_s: Longest start in seconds.
            slots: Number of equal parts of the device without a setting.

        Raises:
            EngineDied: The engine did not start. `starts` has this start too.
        """
        slots = setting.slots if setting else slots
        started_at, failure, process = time.monotonic(), "", await self._next_process()
        taken = {engine.place for engine in self._running}
        place = next(number for number in count() if number not in taken)
        share = share_of(self.argv, slots, place, is_cpu=self.is_cpu)
        number = len(self.starts) + 1
        try:
            async with waiting(f"starting engine {number}: {setting or 'your flags'}"):
                info = await process.start(
                    replace(share, flags=[*share.flags, *flags(setting)]), self.sample, timeout_s
                )
            setting = setting or setting_of(info, slots)
            self._running.append(_Engine(setting, process, place))
        except BaseException as error:
            failure = str(error) or type(error).__name__
            await process.close()
            raise
        finally:
            seconds = time.monotonic() - started_at
            self.plan.budget.took_start(seconds, has_failed=bool(failure))
            self.starts.append(EngineStart(setting, seconds, failure))
            self._note_slots()
        say(f"  engine {number}: {setting}, started in {seconds:.0f} s")
        return info

    async def measure(self, candidate: Candidate) -> MeasuredPoint:
        """Measure a point, and first start the engines that it lacks.

        A failure gives a point with the reason.
        """
        try:
            await self.prepare(candidate)
        except EngineDied as error:
            return MeasuredPoint(candidate, f"the engine did not start: {error}")
        own = [entry for entry in self._running if entry.setting == candidate.setting]
        used = own[: candidate.engines]
        self._running = [entry for entry in self._running if entry not in used] + used
        async with waiting(f"measuring {candidate}"):
            point = await self._measured(candidate, [engine.process for engine in used])
        if point.failure:
            await self._end(used)
        self._note_slots()
        return point

    async def close(self) -> None:
        """End all engines, at the same time."""
        spare, self._spare = self._spare, None
        closing = [spare.close()] if spare else []
        await asyncio.gather(self._end(self._running), *closing)

    async def end_engines(self) -> None:
        """End all engines; others may start afterwards."""
        await self._end(self._running)

    async def prepare(self, candidate: Candidate) -> None:
        """End the engines that are in the way, and start those that a candidate lacks.

        Raises:
            EngineDied: One of them did not start.
        """
        ends = []
        for setting in self.plan.slots.to_close(candidate):
            known = (entry for entry in self._running if entry.setting == setting)
            ends.append(next(entry for entry in known if entry not in ends))
        await self._end(ends)
        for _ in range(self.plan.slots.num_to_start(candidate)):
            timeout_s = self.plan.start_timeout_s(self._best, time.monotonic())
            await self.start(candidate.setting, timeout_s)

    async def _measured(
        self, candidate: Candidate, engines: Sequence[EngineProcess]
    ) -> MeasuredPoint:
        budget, begun_at = self.plan.budget, time.monotonic()
        max_s = max(1.0, min(budget.point_s, budget.left_s(begun_at)))
        if len(engines) == 1:
            point = await engines[0].measure(candidate, max_s)
        else:
            measuring = [
                engine.measure(candidate, max_s, offset=i / len(engines), hold=True)
                for i, engine in enumerate(engines)
            ]
            point = together(candidate, await asyncio.gather(*measuring))
            await asyncio.gather(*(engine.release() for engine in engines))
        budget.took_point(time.monotonic() - begun_at)
        return point

    async def _end(self, entries: Sequence[_Engine]) -> None:
        if not entries:
            return
        closed_at = time.monotonic()
        self._running = [entry for entry in self._running if entry not in entries]
        self._note_slots()
        await asyncio.gather(*(entry.process.close() for entry in entries))
        self.plan.budget.took_close(time.monotonic() - closed_at)

    def _note_slots(self) -> None:
        resident = tuple(engine.setting for engine in self._running)
        keep = self.plan.start.setting if self.plan.start else None
        self.plan.slots = replace(Slots(resident), keep=keep)

    async def _next_process(self) -> EngineProcess:
        """Return a process for an engine. On a GPU, start the next one, so that it can load vLLM."""
        process, self._spare = self._spare or await self._spawned(), None
        if self._has_spares:
            self._spare = await self._spawned()
        return process

    @property
    def _has_spares(self) -> bool:
        return bool(self._num_spawned) and not self.is_cpu

    async def _spawned(self) -> EngineProcess:
        self._num_spawned += 1
        return await EngineProcess.spawned(self.folder / f"engine-{self._num_spawned:02}.log")

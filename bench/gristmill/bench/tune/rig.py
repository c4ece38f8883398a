"""The one engine that runs at a time, and what each has cost."""

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from gristmill.bench.tune.budget import Budget
from gristmill.bench.tune.points import Candidate, Point, Setting
from gristmill.bench.tune.sample import Sample
from gristmill.bench.tune.trials import Trial
from gristmill.shared.cli import say
from gristmill.shared.errors import EngineDied

SEQUENCES, TOKENS = "--max-num-seqs", "--max-num-batched-tokens"


@dataclass(frozen=True, slots=True)
class Start:
    """One start of an engine; `setting` is None where it did not get as far as its defaults."""

    setting: Setting | None
    seconds: float
    failure: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it for the record."""
        return asdict(self)


@dataclass(slots=True)
class Rig:
    """Starts engines, one at a time, and measures on them.

    Attributes:
        argv: The user's flags.
        sample: What to run.
        folder: For the logs of the engines.
        budget: Told what starts and ends take.
        starts: All of them.
    """

    argv: Sequence[str]
    sample: Sample
    folder: Path
    budget: Budget
    starts: list[Start] = field(default_factory=list)
    _trial: Trial | None = None
    _setting: Setting | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def has_time(self, setting: Setting) -> bool:
        """Whether the budget allows another point, and the start of its engine if that is another."""
        return self.budget.has_time(time.monotonic(), is_start=self._setting != setting)

    async def start(self, setting: Setting | None, timeout_s: float) -> dict[str, Any]:
        """Start an engine, after the end of the one before; returns its `EngineInfo`.

        Args:
            setting: Put behind the user's flags; None for these alone.
            timeout_s: Longest start.

        Raises:
            EngineDied: It did not start; noted in `starts` too.
        """
        await self.close()
        started_at = time.monotonic()
        log = self.folder / f"engine-{len(self.starts) + 1:02}.log"
        trial = Trial([*self.argv, *flags(setting)], self.sample, log)
        self._trial = await self._stack.enter_async_context(trial)
        failure = ""
        try:
            info = await self._trial.start(timeout_s)
            self._setting = setting or setting_of(info)
        except EngineDied as error:
            failure = str(error)
            await self.close()
            raise
        finally:
            seconds = time.monotonic() - started_at
            self.budget.took_start(seconds)
            self.starts.append(Start(setting or self._setting, seconds, failure))
        say(f"  engine {len(self.starts)}: {self._setting}, started in {seconds:.0f} s")
        return info

    async def measure(self, candidate: Candidate) -> Point:
        """Measure a point, on another engine if it needs one; a failure is a point too."""
        if self._setting != candidate.setting:
            try:
                await self.start(candidate.setting, self.budget.left_s(time.monotonic()))
            except EngineDied as error:
                return Point(candidate, f"the engine did not start: {error}")
        assert self._trial is not None  # noqa: S101  # start has set it
        left_s = self.budget.left_s(time.monotonic())
        point = await self._trial.measure(candidate, max(1.0, min(self.budget.point_s, left_s)))
        if point.failure:
            await self.close()
        return point

    async def close(self) -> None:
        """End the engine that runs, if one does."""
        if self._trial is None:
            return
        closed_at = time.monotonic()
        self._trial = self._setting = None
        await self._stack.aclose()
        self.budget.took_close(time.monotonic() - closed_at)


def setting_of(info: dict[str, Any]) -> Setting:
    """Return what an engine says that it runs with."""
    return Setting(info["max_num_seqs"], info["max_num_batched_tokens"])


def flags(setting: Setting | None) -> list[str]:
    """Return vLLM's flags of a setting; the last of two equal flags counts."""
    if setting is None:
        return []
    return [SEQUENCES, str(setting.max_num_seqs), TOKENS, str(setting.max_num_batched_tokens)]


def without_flags(argv: Sequence[str]) -> list[str]:
    """Return the user's flags without those that are tuned."""
    kept: list[str] = []
    is_value = False
    for word in argv:
        name, has_value, _ = word.partition("=")
        is_tuned = name.replace("_", "-") in (SEQUENCES, TOKENS)
        if not is_tuned and not is_value:
            kept.append(word)
        is_value = is_tuned and not has_value
    return kept

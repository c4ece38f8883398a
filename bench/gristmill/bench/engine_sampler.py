"""Sample the engine's state at a fixed interval during a run."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict

from gristmill.bench.bench_report import EngineSample
from gristmill.shared.tasks import end
from gristmill.worker.engine import Engine

INTERVAL_S = 0.1
"""Seconds between two samples."""

TOTALS = (
    "prompt_tokens",
    "output_tokens",
    "preemptions",
    "steps",
    "step_s",
    "prefix_cache_hits",
    "prefix_cache_queries",
)
"""Counters of `EngineStats` whose growth during a run is recorded."""


class EngineSampler:
    """Samples an engine for the length of a block.

    Args:
        engine: Engine to sample; an engine that counts no steps, such as a server, gives no
            samples.
        started_at: Start of the run in monotonic seconds.
        gpu: Returns the busy share of the GPU; None if it cannot be measured.

    Attributes:
        samples: All samples in the order of time.
        grown: Growth of the engine's counters; filled when the block ends.
    """

    def __init__(self, engine: Engine, started_at: float, gpu: Callable[[], float] | None) -> None:
        self._engine, self._started_at, self._gpu = engine, started_at, gpu
        self._before = asdict(engine.stats())
        self.samples: list[EngineSample] = []
        self.grown: dict[str, float] = {}

    async def __aenter__(self) -> "EngineSampler":
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(self._task)
        after = asdict(self._engine.stats())
        self.grown = {name: after[name] - self._before[name] for name in TOTALS}

    async def _run(self) -> None:
        while True:
            stats = self._engine.stats()
            at_s = round(time.monotonic() - self._started_at, 3)
            gpu = self._gpu() if self._gpu else None
            if stats.steps:
                self.samples.append(
                    EngineSample(
                        at_s, stats.running, stats.waiting, round(stats.kv_cache_usage, 4), gpu
                    )
                )
            await asyncio.sleep(INTERVAL_S)

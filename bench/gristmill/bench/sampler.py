"""Look at the engine at a fixed interval while a run lasts."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict

from gristmill.bench.records import Sample
from gristmill.shared.tasks import end
from gristmill.worker.engine import Engine

INTERVAL_S = 0.1

TOTALS = (
    "prompt_tokens",
    "output_tokens",
    "preemptions",
    "steps",
    "prefix_cache_hits",
    "prefix_cache_queries",
)


class Sampler:
    """Samples an engine for the length of a block.

    Args:
        engine: Which; one without counters gives no samples.
        started_at: When the run began, monotonic seconds.
        gpu: Tells the busy share of the GPU, if anybody can.

    Attributes:
        samples: In the order of time.
        grown: What the engine's totals grew by, once the block has ended.
    """

    def __init__(self, engine: Engine, started_at: float, gpu: Callable[[], float] | None) -> None:
        self._engine, self._started_at, self._gpu = engine, started_at, gpu
        self._before = asdict(engine.stats())
        self.samples: list[Sample] = []
        self.grown: dict[str, int] = {}

    async def __aenter__(self) -> "Sampler":
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
                    Sample(at_s, stats.running, stats.waiting, round(stats.kv_cache_usage, 4), gpu)
                )
            await asyncio.sleep(INTERVAL_S)

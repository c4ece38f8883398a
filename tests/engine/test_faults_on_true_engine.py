"""Test rounds of faults against two real engines; each round kills or stops a part of them.

`GRISTMILL_FAULT_SEED=<seed>` replays a run; `make test-faults` takes 20 rounds.
"""

import asyncio
import os
import random
import time
from itertools import count
from pathlib import Path

import psutil
import pytest
from faults import report
from faults.cell import BINARIES, Cell, Pod, open_cell
from faults.outcome import audited, come_to_rest
from faults.processes import Prompt
from faults.schedule import Fault, Point

from gristmill.shared.results import Result

NUM_ROUNDS = int(os.environ.get("GRISTMILL_FAULT_ENGINE_ROUNDS", "3"))
SEED = int(os.environ.get("GRISTMILL_FAULT_SEED", time.time_ns() // 1000 % 10**9))
ROUND_LIMIT_S = 180
LEASE_S = 4.0

FAULTS = (
    "kill -9", "SIGTERM", "SIGSTOP past the lease", "reply lost", "Redis restart", "half-open connection",
    "engine killed", "engine stopped",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout((NUM_ROUNDS + 1) * ROUND_LIMIT_S)
async def test_rounds_of_faults_lose_and_double_nothing(tmp_path: Path, argv: list[str]) -> None:
    chance, numbers = random.Random(SEED), count()
    asked_for: dict[str, Prompt] = {}
    faults = [FAULTS[i % len(FAULTS)] for i in range(NUM_ROUNDS)]
    chance.shuffle(faults)
    async with open_cell(BINARIES[0], tmp_path) as cell:
        for _ in range(2):
            await cell.add_worker(
                engine_argv=tuple(argv), lease_s=LEASE_S, beat_s=0.5, stall_timeout_s=8,
                max_in_flight=24, drain_timeout_s=2,
            )  # fmt: skip
        for kind in faults:
            prompts = {f"r{n}": _prompt(chance, n) for n in (next(numbers) for _ in range(48))}
            asked_for |= prompts
            async with asyncio.timeout(ROUND_LIMIT_S):
                producer = await cell.add_producer(prompts)
                await cell.until("succeeded", len(asked_for) - 40)  # some run, somewhere
                await _inflict(cell, chance, kind)
                await producer.living
        async with asyncio.timeout(ROUND_LIMIT_S):
            await come_to_rest(cell, may_be_killed=True)
        outcome = await audited(cell, asked_for, _check_answer)
    assert outcome.num_innocents == 0, f"seed {SEED}"
    report.count([f"true engine, {kind}" for kind in set(faults)], outcome)


def _prompt(chance: random.Random, number: int) -> Prompt:
    return Prompt(f"number {number}", chance.randint(5, 250))


def _check_answer(prompt: Prompt, result: Result) -> None:
    assert result.status == "succeeded", result
    assert result.body is not None
    assert result.body["usage"]["completion_tokens"] == prompt.max_tokens


async def _inflict(cell: Cell, chance: random.Random, kind: str) -> None:
    target = chance.randrange(len(cell.workers))
    if kind.startswith("engine"):
        for engine in _engines(cell.workers[target]):
            (engine.kill if kind == "engine killed" else engine.suspend)()
        return
    point = Point("ack", "answered", 1) if kind == "reply lost" else None
    await cell.inflict(Fault(kind, 0, LEASE_S * 1.5 if "SIGSTOP" in kind else 1.0, target, point))


def _engines(pod: Pod) -> list[psutil.Process]:
    """Return the EngineCore processes of a worker; none while its engine starts."""
    children = psutil.Process(pod.process.pid).children()
    return [child for child in children if "EngineCore" in child.name() + " ".join(child.cmdline())]

"""Random faults at random moments and points: thousands of schedules, each with its audit.

`GRISTMILL_FAULT_SEED=<seed> GRISTMILL_FAULT_SCHEDULES=1` replays one. `GRISTMILL_FAULT_REFILL=4` lets
every worker refill in gulps of four places; half of the schedules do so anyway.
"""

import asyncio
import os
import shutil
import time
import traceback
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from faults import report
from faults.cell import BINARIES, SMALL_LIMITS, Cell, open_cell
from faults.outcome import Outcome, audited, come_to_rest
from faults.schedule import Schedule, schedule_of
from faults.uploads import stalled_uploads

NUM_SCHEDULES = int(os.environ.get("GRISTMILL_FAULT_SCHEDULES", "60"))
FIRST_SEED = int(os.environ.get("GRISTMILL_FAULT_SEED", time.time_ns() // 1000 % 10**9))
REFILL = int(os.environ.get("GRISTMILL_FAULT_REFILL", "0"))
CELLS_A_CORE = 4
LIMIT_S = 60


def uploads_of(cell: Cell, schedule: Schedule) -> AbstractAsyncContextManager[None]:
    """Return the gateway of a schedule where uploads stall; for others, a block without one."""
    if not schedule.has_gateway:
        return nullcontext()
    return stalled_uploads(cell.redis.url, cell.queue, cell.folder / "files")


async def run(schedule: Schedule, folder: Path) -> Outcome:
    """Run a schedule to its end and check it."""
    async with open_cell(BINARIES[schedule.seed % len(BINARIES)], folder) as cell:
        limits: dict[str, Any] = dict(SMALL_LIMITS)
        if schedule.has_server:
            limits["vllm_url"] = await cell.add_server()
        for offset_s in schedule.clock_offsets_s:
            await cell.add_worker(
                clock_offset_s=offset_s,
                max_in_flight=schedule.max_in_flight,
                refill=REFILL or schedule.refill,
                **limits,
            )
        async with asyncio.timeout(LIMIT_S), uploads_of(cell, schedule):
            producer = await cell.add_producer(schedule.prompts)
            inflicting = asyncio.gather(*(cell.inflict(fault) for fault in schedule.faults))
            await producer.living
            await inflicting
            await cell.until_inbox_is_empty()
            await come_to_rest(cell, may_be_killed="kill -9" in schedule.kinds)
        return await audited(cell, schedule.prompts)


@pytest.mark.timeout(0)
async def test_random_schedules(tmp_path: Path) -> None:
    turn = asyncio.Semaphore(CELLS_A_CORE * (os.cpu_count() or 1))
    failed: list[str] = []

    async def take_turn(seed: int) -> None:
        schedule = schedule_of(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        async with turn:
            try:
                report.count(schedule.kinds, await run(schedule, folder))
            except Exception:  # noqa: BLE001  # the others go on; all are told at the end
                what = traceback.format_exc(limit=-2)
                failed.append(f"seed {seed}: {what}{schedule.faults}\nlogs in {folder}")
            else:
                shutil.rmtree(folder)

    async with asyncio.TaskGroup() as group:
        for seed in range(FIRST_SEED, FIRST_SEED + NUM_SCHEDULES):
            group.create_task(take_turn(seed))
    assert not failed, "\n\n".join(failed)

"""A steward process whose jobs leave notes instead of working: `note`, `nap`, `hold`, `stubborn`; batches are noted and no longer due."""

import asyncio
import os
import sys

import orjson

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.steward.job_registry import JobCall, JobRegistry
from gristmill.producer.steward.process import run_steward
from gristmill.producer.steward.settings import StewardSettings
from gristmill.producer.steward.time_slice import TimeSlice
from gristmill.shared.settings import read_settings


def stub_jobs(settings: StewardSettings) -> JobRegistry:
    time_slice = TimeSlice()

    async def note(call: JobCall) -> None:
        async with BatchStore.from_settings(settings) as store:
            line = orjson.dumps({"job": call.job, "batch": call.batch, "pid": os.getpid()})
            await store.queue.redis.rpush(f"{store.queue.keys.prefix}notes", line)
            due_key = store.queue.keys.batches_due("steps", "default")
            await store.queue.redis.zrem(due_key, call.batch)

    async def hold(call: JobCall) -> None:
        while time_slice.may_go_on():
            await asyncio.sleep(0.02)
        await note(call)

    async def nap(call: JobCall) -> None:
        await asyncio.sleep(2)
        await note(call)

    async def stubborn(_: JobCall) -> None:
        await asyncio.Event().wait()

    async def sweep(_: JobCall) -> None:
        pass

    functions = {"note": note, "hold": hold, "nap": nap, "stubborn": stubborn, "sweep": sweep}
    phases = dict.fromkeys(("validate", "execute"), note)
    return JobRegistry(time_slice, functions | phases)


if __name__ == "__main__":
    settings = read_settings(StewardSettings)
    sys.exit(run_steward(settings, stub_jobs(settings), ()))

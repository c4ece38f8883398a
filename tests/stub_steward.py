"""A steward process whose jobs leave notes instead of working: `note`, `nap`, `hold`, `stubborn`; batches are noted and settled."""

import asyncio
import os
import sys
from collections.abc import Mapping

import orjson

from gristmill.producer.batches.service import Batches
from gristmill.producer.steward.allowed import Call
from gristmill.producer.steward.process import run_steward
from gristmill.producer.steward.runner import Function
from gristmill.producer.steward.settings import StewardSettings
from gristmill.producer.steward.turn import Turn
from gristmill.shared.settings import read_settings


def functions(settings: StewardSettings, turn: Turn) -> Mapping[str, Function]:
    async def note(call: Call) -> None:
        async with Batches.from_settings(settings) as batches:
            line = orjson.dumps({"job": call.job, "batch": call.batch, "pid": os.getpid()})
            await batches.queue.redis.rpush(f"{batches.queue.keys.prefix}notes", line)
            await batches.registry.settle(call.batch)

    async def hold(call: Call) -> None:
        while turn.may_go_on():
            await asyncio.sleep(0.02)
        await note(call)

    async def nap(call: Call) -> None:
        await asyncio.sleep(2)
        await note(call)

    async def stubborn(_: Call) -> None:
        await asyncio.Event().wait()

    async def sweep(_: Call) -> None:
        pass

    return {
        "note": note,
        "hold": hold,
        "nap": nap,
        "stubborn": stubborn,
        "sweep": sweep,
    } | dict.fromkeys(("validate", "feed", "finalize", "announce"), note)


if __name__ == "__main__":
    sys.exit(run_steward(read_settings(StewardSettings), functions))

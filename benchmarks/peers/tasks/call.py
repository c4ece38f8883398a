"""Do one action of a producer in the peer's own interpreter, and print its seconds as JSON.

python call.py MODULE submit|answers|slow NUMBER
"""

import asyncio
import importlib
import json
import sys
import time
from types import ModuleType

NUM_WARM = 5


async def submit(tasks: ModuleType, number: int) -> list[float]:
    started_s = time.perf_counter()
    await tasks.submit(number)
    return [time.perf_counter() - started_s]


async def answers(tasks: ModuleType, number: int) -> list[float]:
    seconds = []
    for _ in range(NUM_WARM + number):
        started_s = time.perf_counter()
        await tasks.answer()
        seconds.append(time.perf_counter() - started_s)
    return seconds[NUM_WARM:]


async def slow(tasks: ModuleType, number: int) -> list[float]:
    await tasks.submit_slow(number)
    return []


async def main(module: str, action: str, number: int) -> None:
    tasks = importlib.import_module(module)
    async with tasks.opened():
        seconds = await {"submit": submit, "answers": answers, "slow": slow}[action](tasks, number)
    print(json.dumps(seconds))


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))

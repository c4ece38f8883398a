"""A task that lasts until its gate opens, and leaves a mark when it starts and when it ends.

The gate opens after the worker's death. So no task ends before it, even on a slow machine.
"""

import asyncio
import os
import time
from pathlib import Path

POLL_S = 0.05
GATE = Path(os.environ["PEER_GATE"])


def mark(event: str, number: int) -> None:
    line = f"{event} {number}\n".encode()
    file = os.open(os.environ["PEER_MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


def gated(number: int) -> None:
    mark("start", number)
    while not GATE.exists():
        time.sleep(POLL_S)
    mark("end", number)


async def gated_async(number: int) -> None:
    mark("start", number)
    while not GATE.exists():
        await asyncio.sleep(POLL_S)
    mark("end", number)

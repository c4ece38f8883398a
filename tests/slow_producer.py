"""A producer to kill: one call that submits parts, and waits after each for the file `go-<part>`.

Arguments: folder of the files, requests in each part. REDIS_URL and GRISTMILL_QUEUE name the queue.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

from gristmill.producer import Client


async def bodies(folder: Path, number: int) -> AsyncIterator[dict[str, Any]]:
    for part in count():
        for index in range(number):
            yield {"prompt": f"part {part}, word {index}", "max_tokens": 4}
        while not (folder / f"go-{part}").exists():
            await asyncio.sleep(0.02)


async def main(folder: Path, number: int) -> None:
    async with Client() as client:
        await client.submit_many(bodies(folder, number))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))

"""Run a minimal worker; `test_engine_faults` starts it in a separate process group.

It ignores signals as a draining worker does, and prints a line once requests run. At the end it
prints one line with their statuses, their finish reasons and the engine's state.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence

from gristmill.worker.engine import InProcessEngine

NUM_REQUESTS = 8


async def main(argv: Sequence[str]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: None)
    engine = InProcessEngine(argv)
    await engine.start()
    posted = asyncio.gather(*(_post(engine) for _ in range(NUM_REQUESTS)))
    while engine.stats().running < NUM_REQUESTS:
        await asyncio.sleep(0.001)
    _say("running")
    answers = await posted
    await engine.check(30)
    _say(json.dumps(answers))
    await asyncio.to_thread(sys.stdin.read)
    await engine.close()


async def _post(engine: InProcessEngine) -> tuple[int, str | None, int]:
    fields = {"model": "tiny", "prompt": "hello", "max_tokens": 200, "ignore_eos": True}
    response = await engine.post("/v1/completions", json.dumps(fields).encode())
    return response.status, response.finish_reason, response.output_tokens


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

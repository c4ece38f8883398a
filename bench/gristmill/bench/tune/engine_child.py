"""The process of one engine: `python -m gristmill.bench.tune.engine_child`.

`engine_process.py` starts it. It reads JSON lines on stdin. The first says which engine to start,
each later one which point to measure. It answers each with one line on stdout:

- `{"started": ...}`: the engine's `EngineInfo`;
- `{"point": ...}`: the measured point;
- `{"failed": reason}`: the engine did not start, or it died;
- `{"refused": reason}`: the sample cannot be used, so every point would fail.

The process ends after a failure or a refusal, and when stdin ends, as it does when the parent dies.
Its engine ends with it. Only answers go to stdout; everything that libraries print goes to stderr.
"""

import asyncio
import os
import sys
from dataclasses import asdict, replace
from typing import Any, BinaryIO

import orjson
import uvloop

from gristmill.bench.loads import LoadRequest
from gristmill.bench.tune.candidates import Candidate, Setting
from gristmill.bench.tune.closed_loop import measure_point
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.shared.errors import GristmillError, InvalidRequest
from gristmill.shared.log import configure_logging
from gristmill.shared.tasks import end
from gristmill.worker.engine import Engine, EngineInfo, InProcessEngine, RunLimits

MAX_LINE_BYTES = 2**20


async def serve(orders: asyncio.StreamReader, answers: BinaryIO) -> None:
    """Start an engine and measure with it until the orders end."""
    inbox: asyncio.Queue[bytes] = asyncio.Queue()
    working = asyncio.create_task(_work(inbox, answers))
    reading = asyncio.create_task(_read(orders, inbox))
    await asyncio.wait([working, reading], return_when=asyncio.FIRST_COMPLETED)
    await end(reading)
    working.cancel()  # only once: a second one would interrupt the shutdown of the engine
    await asyncio.wait([working])
    if not working.cancelled():
        working.result()


async def _read(orders: asyncio.StreamReader, inbox: "asyncio.Queue[bytes]") -> None:
    while line := await orders.readline():
        inbox.put_nowait(line)


async def _work(inbox: "asyncio.Queue[bytes]", answers: BinaryIO) -> None:
    first = orjson.loads(await inbox.get())
    engine = InProcessEngine(first["argv"], RunLimits())
    try:
        info = await engine.start()
        load = LoadSample(**first["sample"]).requests()
        _answer(answers, {"started": asdict(replace(info, body_schemas={}))})
        while True:
            order = orjson.loads(await inbox.get())
            _answer(answers, {"point": await _measured(engine, info, load, order)})
    except InvalidRequest as error:
        _answer(answers, {"refused": str(error)})
    except GristmillError as error:
        _answer(answers, {"failed": str(error)})
    finally:
        await engine.close()


async def _measured(
    engine: Engine, info: EngineInfo, load: list[LoadRequest], order: dict[str, Any]
) -> dict[str, Any]:
    setting = Setting(info.max_num_seqs, info.max_num_batched_tokens)
    candidate = Candidate(setting, order["in_flight"])
    return (await measure_point(engine, info.models[0], load, candidate, order["max_s"])).as_json()


def _answer(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(orjson.dumps(answer) + b"\n")
    answers.flush()


async def _main(answers: BinaryIO) -> None:
    orders = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    await serve(orders, answers)


def main() -> None:
    """Reserve stdout for the answers, then serve."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    configure_logging("WARNING")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(answers))


if __name__ == "__main__":
    main()

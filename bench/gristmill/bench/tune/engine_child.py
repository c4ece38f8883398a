"""The process of one engine: `python -m gristmill.bench.tune.engine_child`.

`engine_process.py` starts it. It loads vLLM, finds the devices and says so. Then it reads JSON
lines on stdin. The first says which engine to start, each later one which point to measure, or that
the load of a point may end. It answers each with one line on stdout:

- `{"devices": ...}`: vLLM is loaded; the first line, which answers nothing;
- `{"started": ...}`: the engine's `EngineInfo`;
- `{"point": ...}`: the measured point; its load runs on if the order said `hold`;
- `{"released": true}`: that load has ended;
- `{"failed": reason}`: the engine did not start, or it died; with `"is_setting": true` if vLLM
  refused the flags before it started anything;
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
from gristmill.bench.tune.closed_loop import MIN_REQUESTS, measured_point
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.steady_load import endless
from gristmill.shared.errors import GristmillError, InvalidRequest, SettingsError
from gristmill.shared.log import configure_logging
from gristmill.shared.tasks import end
from gristmill.worker.engine import Engine, EngineInfo, InProcessEngine, RunLimits
from gristmill.worker.engine.vllm.arguments import prepare_environment
from gristmill.worker.engine.vllm.devices import find_devices

MAX_LINE_BYTES = 2**20

Inbox = asyncio.Queue[bytes]


async def serve(orders: asyncio.StreamReader, answers: BinaryIO) -> None:
    """Start an engine and measure with it until the orders end."""
    inbox: Inbox = asyncio.Queue()
    working = asyncio.create_task(_work(inbox, answers))
    reading = asyncio.create_task(_read(orders, inbox))
    await asyncio.wait([working, reading], return_when=asyncio.FIRST_COMPLETED)
    await end(reading)
    working.cancel()  # only once: a second one would interrupt the shutdown of the engine
    await asyncio.wait([working])
    if not working.cancelled():
        working.result()


async def _read(orders: asyncio.StreamReader, inbox: Inbox) -> None:
    while line := await orders.readline():
        inbox.put_nowait(line)


async def _work(inbox: Inbox, answers: BinaryIO) -> None:
    first = orjson.loads(await inbox.get())
    os.environ.update(first["environment"])
    if first["cores"]:
        os.sched_setaffinity(0, first["cores"])
    engine = InProcessEngine(first["flags"], RunLimits())
    try:
        info = await engine.start()
        load = LoadSample(**first["sample"]).requests()
        _answer(answers, {"started": asdict(replace(info, body_schemas={}))})
        while True:
            order = orjson.loads(await inbox.get())
            await _measure(engine, info, load, order, (inbox, answers))
    except InvalidRequest as error:
        _answer(answers, {"refused": str(error)})
    except GristmillError as error:
        is_setting = isinstance(error, SettingsError)
        _answer(answers, {"failed": str(error), "is_setting": is_setting})
    finally:
        await engine.close()


async def _measure(
    engine: Engine,
    info: EngineInfo,
    load: list[LoadRequest],
    order: dict[str, Any],
    parent: tuple[Inbox, BinaryIO],
) -> None:
    inbox, answers = parent
    setting = Setting(info.max_num_seqs, info.max_num_batched_tokens)
    candidate = Candidate(setting, order["in_flight"], refill=order["refill"])
    requests = endless(load, info.models[0], skip=int(order["offset"] * len(load)))
    enough = min(len(load), MIN_REQUESTS)
    async with measured_point(engine, requests, candidate, order["max_s"], enough) as point:
        if order["hold"]:
            _answer(answers, {"point": point.as_json()})
            await inbox.get()
    _answer(answers, {"released": True} if order["hold"] else {"point": point.as_json()})


def _answer(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(orjson.dumps(answer) + b"\n")
    answers.flush()


async def _main(answers: BinaryIO) -> None:
    orders = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    await serve(orders, answers)


def main() -> None:
    """Reserve stdout for the answers, load vLLM, then serve."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    configure_logging("WARNING")
    prepare_environment()
    _answer(answers, {"devices": asdict(find_devices())})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(answers))


if __name__ == "__main__":
    main()

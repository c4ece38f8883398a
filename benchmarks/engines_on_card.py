"""Measure `gristmill worker --engines N` through the queue: several numbers of engines, in turns.

    python benchmarks/engines_on_card.py --side '1 plain:1:GRISTMILL_REFILL=1' --side '3 gulps:3' -- --model PATH ...

After `--` stand vLLM's flags for every engine. A side is a name, a number of engines and, if needed,
environment variables. Its workers run under one parent, on a queue of their own. A side with 0 engines
is one bare `AsyncLLM`, which gets all requests at once.

The engines of all sides are on the device together, and only one side computes at a time. So the
flags must leave room for all: give `--gpu-memory-utilization` and `--kv-cache-memory-bytes`. The
first side starts alone, so that the others find its compiled model. Each round drains a new load on
every side, every second round in the reverse order. A load has the same number of requests for each
engine. The ratios to the first side are medians over the rounds.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from statistics import median

from engine_share import bare

from gristmill.bench.loads import LoadRequest, named
from gristmill.local.processes import die_with_parent
from gristmill.local.redis_server import running_server
from gristmill.producer.client import Client
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue
from gristmill.worker.engine import InProcessEngine

MODEL = "m"
POLL_S = 0.2
CLOSE_S = 10.0
"""Seconds that are kept for the end of all processes."""


@dataclass(frozen=True)
class Load:
    """A named number of requests; the same in each process that makes it."""

    num_requests: int
    seed: int
    scale: float

    def requests(self) -> Sequence[LoadRequest]:
        return named("lognormal", self.num_requests, self.seed, self.scale)


@dataclass(frozen=True)
class Side:
    """What one row measures: a number of engines with an environment; 0 engines mean a bare one."""

    name: str
    engines: int
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parsed(cls, text: str) -> "Side":
        name, engines, *variables = text.split(":")
        return cls(name, int(engines), dict(each.split("=", 1) for each in variables))

    @property
    def log_name(self) -> str:
        return "".join(each if each.isalnum() else "-" for each in self.name) + ".log"


class QueueSide:
    """The workers of a side, under one parent that serves a queue of its own."""

    def __init__(
        self, side: Side, process: "subprocess.Popen[bytes]", queue: Queue, client: Client
    ) -> None:
        self.side = side
        self._process = process
        self._queue = queue
        self._client = client

    async def ready(self) -> None:
        while len((await self._queue.stats()).workers) < self.side.engines:
            await asyncio.sleep(POLL_S)
            if (code := self._process.poll()) is not None:
                raise RuntimeError(f"{self.side.name} ended with {code}; see its log")

    async def drain(self, load: Load) -> float:
        """Run a load and return its seconds; check the length of each answer."""
        asked = load.requests()
        requests = [each.request(MODEL) for each in asked]
        lengths = {one.id: each.max_tokens for one, each in zip(requests, asked, strict=True)}
        started_s = time.perf_counter()
        async for result in self._client.as_completed(requests):
            usage = (result.body or {}).get("usage", {})
            if usage.get("completion_tokens") != lengths[result.id]:
                raise RuntimeError(f"{result.id} {result.status}: {result.error} {usage}")
        return time.perf_counter() - started_s


class BareSide:
    """One engine alone, in a process of its own that reads loads from its input."""

    def __init__(self, side: Side, process: "subprocess.Popen[bytes]", answers: int) -> None:
        self.side = side
        self._process = process
        self._answers = os.fdopen(answers, "r")

    async def ready(self) -> None:
        await asyncio.to_thread(self._answer)

    async def drain(self, load: Load) -> float:
        """Run a load and return its seconds."""
        if loads := self._process.stdin:
            loads.write(json.dumps(astuple(load)).encode() + b"\n")
            loads.flush()
        return float(await asyncio.to_thread(self._answer))

    def _answer(self) -> str:
        if not (line := self._answers.readline()):
            raise RuntimeError(f"{self.side.name} ended; see its log")
        return line


AnySide = QueueSide | BareSide


async def answer_loads(argv: Sequence[str], answers: int) -> None:
    """Be the process of a bare engine: a line with a load comes in, its seconds go out."""
    engine = InProcessEngine(argv)
    await engine.start()
    with os.fdopen(answers, "w", buffering=1) as out:
        out.write("ready\n")
        while line := await asyncio.to_thread(sys.stdin.readline):
            load = Load(*json.loads(line))
            out.write(f"{await bare(engine, load.requests())}\n")
    await engine.close()


@asynccontextmanager
async def started(side: Side, url: str, options: argparse.Namespace) -> AsyncIterator[AnySide]:
    """Start the processes of a side, and kill them at the end."""
    environment = {**os.environ, "REDIS_URL": url, "GRISTMILL_HEALTH_PORT": "0", **side.environment}
    environment["GRISTMILL_QUEUE"] = name = f"side{options.side.index(side)}"
    answers, inner = os.pipe()
    if side.engines:
        environment["GRISTMILL_ENGINES"] = str(side.engines)
        command = [sys.executable, "-m", "gristmill.worker", *options.engine_argv]
        command += ["--served-model-name", MODEL]
    else:
        command = [sys.executable, __file__, "--answers", str(inner), "--", *options.engine_argv]
    with (options.out / side.log_name).open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220, S603  # our own worker
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[inner],
            preexec_fn=die_with_parent,  # noqa: PLW1509  # no threads yet
        )
    os.close(inner)
    try:
        if not side.engines:
            yield BareSide(side, process, answers)
            return
        os.close(answers)
        queue = Queue(connect(url), name)
        async with Client(queue=Queue(connect(url), name)) as client:
            yield QueueSide(side, process, queue, client)
    finally:
        process.kill()


async def measure(options: argparse.Namespace, url: str, running: AsyncExitStack) -> None:
    sides: list[AnySide] = []
    ends_s = time.monotonic() + options.limit_s - CLOSE_S
    began_s = time.monotonic()
    for side in options.side:
        sides.append(await running.enter_async_context(started(side, url, options)))
        if len(sides) == 1:
            await sides[0].ready()
    waiting = {asyncio.create_task(each.ready()): each for each in sides[1:]}
    await asyncio.wait(waiting, timeout=options.start_s)
    for task, each in waiting.items():
        if task.done() and not (error := task.exception()):
            continue
        words = error if task.done() else f"not ready after {options.start_s} s"
        print(f"left out: {each.side.name}: {words}", flush=True)
        sides.remove(each)
        task.cancel()
    print(
        f"engines of {len(sides)} sides started in {time.monotonic() - began_s:.0f} s", flush=True
    )
    for each in sides:
        await each.drain(Load(64 * max(1, each.side.engines), 0, options.scale))
    speeds: dict[str, list[float]] = {each.side.name: [] for each in sides}
    longest_s = 0.0
    for number in range(1, options.rounds + 1):
        if time.monotonic() + longest_s > ends_s:
            print(f"no time for round {number}", flush=True)
            break
        round_s = time.monotonic()
        for each in sides if number % 2 else sides[::-1]:
            load = Load(options.requests * max(1, each.side.engines), number, options.scale)
            seconds = await each.drain(load)
            speed = sum(asked.max_tokens for asked in load.requests()) / seconds
            speeds[each.side.name].append(speed)
            print(f"round {number}, {each.side.name}: {speed:,.0f} tok/s", flush=True)
        longest_s = max(longest_s, time.monotonic() - round_s)
    print_table(speeds)


def print_table(speeds: dict[str, list[float]]) -> None:
    """Print a row for each side; ratios are paired by round."""
    base = next(iter(speeds.values()))
    print("| side | output tok/s, median | of the first, median | rounds |\n" + "| --- " * 4 + "|")
    for name, rounds in speeds.items():
        if rounds:
            ratio = median(one / other for one, other in zip(rounds, base, strict=True))
            each = ", ".join(f"{one:,.0f}" for one in rounds)
            print(f"| {name} | {median(rounds):,.0f} | {ratio:.2f} | {each} |", flush=True)


async def run(options: argparse.Namespace) -> None:
    with running_server() as url:
        async with AsyncExitStack() as running:
            await measure(options, url, running)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--side", type=Side.parsed, action="append", default=[])
    parser.add_argument("--requests", type=int, default=2048, help="requests for each engine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all lengths")
    parser.add_argument("--start-s", type=float, default=240, help="longest start of the engines")
    parser.add_argument("--limit-s", type=float, default=3600, help="no new round after this time")
    parser.add_argument("--out", type=Path, default=Path("engines"), help="folder of the logs")
    parser.add_argument("--answers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("engine_argv", nargs="+", help="vLLM's flags, after --")
    options = parser.parse_args()
    if options.answers is not None:
        asyncio.run(answer_loads(options.engine_argv, options.answers))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    asyncio.run(run(options))


if __name__ == "__main__":
    main()

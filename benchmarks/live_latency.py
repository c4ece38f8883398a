"""Measure the latency of live requests alone and beside a deep batch queue, and what the kept places cost.

    python benchmarks/live_latency.py --shares 0,0.1,0.25 -- --model PATH --max-num-seqs 16 ...  (vLLM's own flags)
    python benchmarks/live_latency.py --stub 512 --shares 0,0.02,0.05,0.1                (no model, steps of 20 ms)

One engine in one process serves all sides. Each side has a queue of its own and the worker's own loop
with one value of GRISTMILL_HIGH_SHARE. The first side has live requests alone, the others also a batch
queue that never empties. Each round runs every side, every second round in the reverse order.

Live requests are of the lane `high` and arrive at random moments (Poisson). One half generates one
token, so its seconds from submit to result are the time to the first token, as a client sees it. The
other half generates `--live-tokens` and holds its places for so long. The batch's tokens per second
are those of the engine, less those of live requests. Other settings come from the environment, such
as GRISTMILL_REFILL.
"""

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import Any

from pydantic import SecretStr
from ulid import ULID

from gristmill.local.redis_server import running_server
from gristmill.shared.connection import connect
from gristmill.shared.log import configure_logging
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.worker.drain import Drain
from gristmill.worker.engine import Engine, EngineInfo, InProcessEngine, StubEngine
from gristmill.worker.liveness import Liveness
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.supervisor import Supervisor
from gristmill.worker.wiring import work

POLL_S = 0.05
DRAIN_S = 60.0
"""Most seconds for the live requests of a window to end after it."""


@dataclass
class Side:
    """One row: a share of kept places; without batch work if it is None.

    Attributes:
        ttft_s: Seconds to the first token, over all rounds.
        batch_rates: Output tokens per second of the batch work, one of each round.
        num_unended: Live requests that had no result when the side ended.
    """

    share: float | None
    ttft_s: list[float] = field(default_factory=list)
    batch_rates: list[float] = field(default_factory=list)
    num_unended: int = 0


@dataclass(frozen=True)
class Bench:
    """The started engine, the Redis and the options of all sides."""

    engine: Engine
    info: EngineInfo
    url: str
    options: argparse.Namespace


class Load:
    """Makes the requests of one side in one round, always the same for a round."""

    def __init__(self, options: argparse.Namespace, model: str, number: int) -> None:
        self._options = options
        self._model = model
        self._chance = random.Random(number)
        self._numbers = count()

    def batch(self, number: int) -> list[Request]:
        mean = self._options.batch_tokens
        return [
            self._request(self._chance.randint(mean // 2, mean + mean // 2), "normal")
            for _ in range(number)
        ]

    def live(self) -> Request:
        """Return the next live request; every second one generates one token."""
        is_probe = next(self._numbers) % 2 == 0
        return self._request(1 if is_probe else self._options.live_tokens, "high")

    def pause_s(self) -> float:
        """Return the seconds until the next live request."""
        return self._chance.expovariate(self._options.rate)

    def _request(self, tokens: int, priority: str) -> Request:
        prompt = [self._chance.randint(1000, 1999) for _ in range(self._options.prompt_tokens)]
        body = {"model": self._model, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        text: Any = "word" if self._options.stub else prompt
        return Request.from_body(
            body | {"prompt": text}, endpoint=COMPLETIONS, priority=priority, id=str(ULID())
        )


async def send_live(queue: Queue, load: Load, ends_s: float) -> list[Request]:
    """Submit live requests until a moment and return them."""
    sent = []
    due_s = time.monotonic() + load.pause_s()
    while due_s < ends_s:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        sent.append(load.live())
        await queue.submit(sent[-1:])
        due_s += load.pause_s()
    await asyncio.sleep(max(0.0, ends_s - time.monotonic()))
    return sent


async def until_ended(queue: Queue, requests: Sequence[Request]) -> list[tuple[int, float]]:
    """Return output tokens and seconds of the live requests that ended within `DRAIN_S`."""
    ids = [request.id for request in requests]
    ends_s = time.monotonic() + DRAIN_S
    while True:
        results = [each for each in await queue.results(ids) if each is not None]
        if len(results) == len(ids) or time.monotonic() > ends_s:
            break
        await asyncio.sleep(POLL_S)
    for each in results:
        if each.status != "succeeded" or each.body is None:
            raise RuntimeError(f"{each.id} {each.status}: {each.error}")
    return [
        (each.body["usage"]["completion_tokens"], (each.finished_ms - each.enqueued_ms) / 1000)
        for each in results
        if each.body
    ]


async def until_full(engine: Engine, info: EngineInfo, side: Side) -> None:
    """Wait until batch work fills its places."""
    most = info.max_num_seqs * (1 - (side.share or 0))
    while engine.stats().running < 0.95 * most - 1:
        await asyncio.sleep(POLL_S)


async def run_side(bench: Bench, side: Side, number: int) -> None:
    """Run one side for one window, and add what it measured."""
    engine, info, options = bench.engine, bench.info, bench.options
    redis = connect(bench.url)
    queue, load = Queue(redis, f"bench-{ULID()}"), Load(options, info.models[0], number)
    if side.share is not None:
        depth = int(info.max_num_seqs * options.depth)
        for _ in range(0, depth, 500):
            await queue.submit(load.batch(500))
    async with running_worker(bench, side, queue.keys.queue) as working:
        if side.share is not None:
            await asyncio.wait_for(until_full(engine, info, side), DRAIN_S)
        await asyncio.sleep(options.warm_s)
        before, began_s = engine.stats(), time.monotonic()
        sent = await send_live(queue, load, began_s + options.window_s)
        after, seconds = engine.stats(), time.monotonic() - began_s
        if working.done():
            working.result()
        waiting = (await queue.stats()).counters["queued"]
        if side.share is not None and not waiting:
            raise RuntimeError("the batch queue ran empty; raise --depth")
        ended = await until_ended(queue, sent)
    side.num_unended += len(sent) - len(ended)
    side.ttft_s += [each_s for tokens, each_s in ended if tokens == 1]
    live_tokens = sum(tokens for tokens, _ in ended)
    side.batch_rates.append((after.output_tokens - before.output_tokens - live_tokens) / seconds)
    await redis.aclose()


@asynccontextmanager
async def running_worker(bench: Bench, side: Side, name: str) -> AsyncIterator["asyncio.Task[Any]"]:
    """Run the worker's loop on the started engine for the length of a block."""
    engine = bench.engine
    settings = WorkerSettings(
        redis_url=SecretStr(bench.url), queue=name, high_share=side.share or 0, drain_timeout_s=0
    )
    drain, liveness = Drain(settings.drain_timeout_s), Liveness(600, 60, 60)
    supervisor = Supervisor(engine, settings, drain, liveness)
    working = asyncio.create_task(work(settings, supervisor, bench.info, drain, liveness))
    try:
        yield working
    finally:
        drain.start("benchmark")
        await working
        while engine.stats().running:  # aborted requests leave with the next step
            await asyncio.sleep(POLL_S)


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]


def print_table(sides: Sequence[Side]) -> None:
    base = next(side.batch_rates for side in sides if side.share == 0)
    print(
        "| kept share | TTFT p50, ms | TTFT p99, ms | probes | batch tok/s | of share 0 |\n"
        + "| --- " * 6
        + "|"
    )
    for side in sides:
        name, batch = "live alone", "| |"
        if side.share is not None:
            ratios = [one / other for one, other in zip(side.batch_rates, base, strict=True)]
            each = " ".join(f"{ratio:.3f}" for ratio in ratios)
            name = f"{side.share:g}"
            batch = f"{median(side.batch_rates):,.0f} | {median(ratios):.3f} ({each}) |"
        p50, p99 = (1000 * percentile(side.ttft_s, share) for share in (0.5, 0.99))
        print(f"| {name} | {p50:.0f} | {p99:.0f} | {len(side.ttft_s)} | {batch}")
        if side.num_unended:
            print(f"{side.num_unended} live requests of share {name} had no result")


async def measure(options: argparse.Namespace) -> None:
    engine: Engine = InProcessEngine(options.engine_argv)
    if options.stub:
        engine = StubEngine(
            token_delay_s=options.step_ms / 1000,
            max_num_seqs=options.stub,
            kv_cache_tokens=options.stub * 8 * options.batch_tokens,
        )
    info = await engine.start()
    print(f"{info.models[0]} on {info.device or 'a stub'}, max_num_seqs {info.max_num_seqs}")
    sides = [Side(None), *map(Side, options.shares)]
    try:
        with running_server() as url:
            bench = Bench(engine, info, url, options)
            for number in range(1, options.rounds + 1):
                for side in sides if number % 2 else sides[::-1]:
                    await run_side(bench, side, number)
                print(f"round {number} is over", flush=True)
    finally:
        await engine.close()
    print_table(sides)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure live requests beside a batch queue.")
    parser.add_argument(
        "--shares",
        type=lambda text: [float(each) for each in text.split(",")],
        default=[0.0, 0.1, 0.25],
        help="values of GRISTMILL_HIGH_SHARE to compare; 0 must be one of them",
    )
    parser.add_argument("--rate", type=float, default=2.0, help="live requests per second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window-s", type=float, default=20.0, help="seconds of each measurement")
    parser.add_argument("--warm-s", type=float, default=3.0, help="seconds before each window")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--batch-tokens", type=int, default=128, help="mean output of batch work")
    parser.add_argument("--live-tokens", type=int, default=32)
    parser.add_argument(
        "--depth", type=float, default=20.0, help="batch requests for each sequence of the engine"
    )
    parser.add_argument("--stub", type=int, help="sequences of a stub engine, instead of vLLM")
    parser.add_argument("--step-ms", type=float, default=20.0, help="step of the stub engine")
    parser.add_argument("engine_argv", nargs="*", help="vLLM's own flags, after --")
    options = parser.parse_args()
    configure_logging("ERROR")
    asyncio.run(measure(options))


if __name__ == "__main__":
    main()

"""Measure workers on one queue, one card each: tokens per second, and how far apart they end.

    python benchmarks/cards.py --cards 0,1 --requests 4096 -- --model PATH ...     (vLLM's own flags)

All workers start and drain one load together. Then one worker stops, and the others drain the next
load, until one worker is left. Each load has the same number of requests per worker, so the ratios
to one worker come from one run. `--cards -` starts a worker without a card. On a CPU, `--cards -,-`
only shows that the script works.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gristmill.bench.loads import LoadRequest, named
from gristmill.local.processes import die_with_parent
from gristmill.local.redis_server import running_server
from gristmill.producer.client import Client
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue
from gristmill.shared.results import Result

MODEL = "m"


@dataclass
class Card:
    """A worker process with one card."""

    name: str
    process: "subprocess.Popen[bytes]"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def started(card: str, url: str, engine_argv: list[str], log: Path) -> Card:
    environment = {**os.environ, "REDIS_URL": url, "GRISTMILL_HEALTH_PORT": "0"}
    if card != "-":
        environment["CUDA_VISIBLE_DEVICES"] = card
    command = [sys.executable, "-m", "gristmill.worker", *engine_argv, "--served-model-name", MODEL]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  # our own worker
            command,
            env=environment,
            stdout=output,
            stderr=output,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # no threads yet
        )
    return Card(f"card {card}", process)


async def ready(queue: Queue, cards: list[Card]) -> None:
    while len((await queue.stats()).workers) < len(cards):
        for card in cards:
            if (code := card.process.poll()) is not None:
                raise RuntimeError(f"{card.name} ended with {code}; see its log")
        await asyncio.sleep(0.2)


async def drain(client: Client, load: list[LoadRequest]) -> tuple[float, list[Result]]:
    """Run a load; return the seconds from the submit to the last result, and all results."""
    started_s = time.perf_counter()
    results = [each async for each in client.as_completed([each.request(MODEL) for each in load])]
    return time.perf_counter() - started_s, results


def by_worker(results: list[Result]) -> tuple[Mapping[str, int], float]:
    """Return each worker's output tokens, and the seconds between the first and the last end."""
    tokens: Counter[str] = Counter()
    ends: dict[str, int] = {}
    for result in results:
        if result.body is None:
            raise RuntimeError(f"{result.id} {result.status}: {result.error}")
        tokens[result.worker] += result.body["usage"]["completion_tokens"]
        ends[result.worker] = max(ends.get(result.worker, 0), result.finished_ms)
    return tokens, (max(ends.values()) - min(ends.values())) / 1000


async def measure(options: argparse.Namespace, url: str, running: ExitStack) -> None:
    queue = Queue(connect(url))
    cards = []
    for i, card in enumerate(options.cards):
        cards.append(started(card, url, options.engine_argv, options.out / f"worker{i}.log"))
        running.callback(cards[-1].process.kill)
    await ready(queue, cards)
    print("| workers | output tok/s | of one worker | each | their ends apart, s |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    rows = []
    async with Client(queue=Queue(connect(url))) as client:
        await drain(client, named("lognormal", 64 * len(cards), 1, options.scale))
        for number in range(len(cards), 0, -1):
            load = named("lognormal", options.requests * number, number + 1, options.scale)
            seconds, results = await drain(client, load)
            tokens, apart_s = by_worker(results)
            each = ", ".join(f"{count / seconds:,.0f}" for count in tokens.values())
            rows.append((number, sum(tokens.values()) / seconds, each, apart_s))
            await asyncio.to_thread(cards[number - 1].stop)
    for number, speed, each, apart_s in reversed(rows):
        print(f"| {number} | {speed:,.0f} | {speed / rows[-1][1]:.2f} | {each} | {apart_s:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--cards", type=lambda text: text.split(","), default=["0", "1"])
    parser.add_argument("--requests", type=int, default=4096, help="requests for each worker")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all lengths")
    parser.add_argument(
        "--out", type=Path, default=Path("cards"), help="folder of the workers' logs"
    )
    parser.add_argument("engine_argv", nargs="+", help="vLLM's flags, after --")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running, running_server() as url:
        asyncio.run(measure(options, url, running))


if __name__ == "__main__":
    main()

"""Measure tokens per second through Redis and worker, relative to the engine without them.

    python benchmarks/engine_share.py -- --model PATH --max-num-seqs 128 ...     (vLLM's own flags)

One engine in one process serves all sides with the same settings. Each round runs the load in every
way, every second round in the reverse order:

- Bare `AsyncLLM.generate` gets all requests at once.
- The worker's own loop claims the requests from Redis, vLLM's OpenAI layer answers them, and the
  loop settles them. `--refill 1,auto` does so once for each way to refill a full engine.

Prompts are token ids and outputs have a fixed length, so both sides do the same work. Turn prefix
caching off, or the second run of a load profits from the first. Without flags the demo's SmolLM2
runs on the CPU, with it off.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from ulid import ULID

from gristmill.bench.loads import LoadRequest, named
from gristmill.local.redis_server import running_server
from gristmill.shared.connection import connect
from gristmill.shared.log import configure_logging
from gristmill.shared.queue import Queue
from gristmill.shared.request import Request
from gristmill.worker.drain import Drain
from gristmill.worker.engine import EngineInfo, InProcessEngine, Response
from gristmill.worker.liveness import Liveness
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.supervisor import Supervisor
from gristmill.worker.wiring import work

BARE = "engine alone"


async def bare(engine: InProcessEngine, load: Sequence[LoadRequest]) -> float:
    """Run all requests at once through AsyncLLM alone, and return the seconds."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    llm: Any = engine._core.engine  # type: ignore[union-attr]

    async def one(prompt: Sequence[int], length: int) -> None:
        params = SamplingParams(
            temperature=0,
            max_tokens=length,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        async for output in llm.generate({"prompt_token_ids": list(prompt)}, params, str(ULID())):
            if len(output.outputs[0].token_ids) != length:
                raise RuntimeError(f"{len(output.outputs[0].token_ids)} of {length} tokens")

    started_s = time.perf_counter()
    await asyncio.gather(*(one(each.body["prompt"], each.max_tokens) for each in load))
    return time.perf_counter() - started_s


@dataclass(frozen=True)
class Passage:
    """One run of a load through Redis and the worker.

    Attributes:
        seconds: Seconds from the start of the worker to the last record.
        num_running: Mean number of running sequences over the steps until the queue was empty.
        num_steps: Steps of the engine.
        step_ms: Mean milliseconds of a step.
        e2e_s: Seconds from submit to result, of each request.
        ttft_s: Seconds from the arrival at the engine to the first token, of each request.
    """

    seconds: float
    num_running: float
    num_steps: int
    step_ms: float
    e2e_s: Sequence[float]
    ttft_s: Sequence[float]

    def row(self) -> str:
        """Return the cells of a table row that follow the share."""
        cells = [
            f"{self.num_running:.1f}",
            f"{self.num_steps:,}",
            f"{self.step_ms:.1f}",
            *(f"{percentile(self.e2e_s, share):.1f}" for share in (0.5, 0.99)),
            *(f"{1000 * percentile(self.ttft_s, share):.0f}" for share in (0.5, 0.99)),
        ]
        return " | ".join(cells)


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]


class WatchedEngine:
    """An engine that notes the time to the first token of each answer."""

    def __init__(self, engine: InProcessEngine) -> None:
        self._engine = engine
        self.ttft_s: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        response = await self._engine.post(endpoint, body, **options)
        self.ttft_s.append(response.ttft_s or 0.0)
        return response


async def queued(
    engine: InProcessEngine,
    info: EngineInfo,
    load: Sequence[LoadRequest],
    url: str,
    refill: int | None,
) -> Passage:
    """Run a load through Redis and the worker."""
    name = f"bench-{ULID()}"
    redis = connect(url)
    queue = Queue(redis, name)
    requests = [each.request(info.models[0]) for each in load]
    for start in range(0, len(requests), 128):
        await queue.submit(requests[start : start + 128])
    settings = WorkerSettings(redis_url=SecretStr(url), queue=name, refill=refill)
    drain, watched, before = Drain(60), WatchedEngine(engine), engine.stats()
    started_s = time.perf_counter()
    liveness = Liveness(600, 60, 60)
    supervisor = Supervisor(watched, settings, drain, liveness)
    working = asyncio.create_task(work(settings, supervisor, info, drain, liveness))
    running: dict[int, int] = {}  # running sequences by step
    while (counters := (await queue.stats()).counters).get("succeeded", 0) < len(requests):
        if working.done():
            working.result()
        if counters["queued"] and (stats := engine.stats()).running:
            running[stats.steps] = stats.running
        await asyncio.sleep(0.02)
    seconds, after = time.perf_counter() - started_s, engine.stats()
    drain.start("benchmark")
    await working
    num_steps = after.steps - before.steps
    passage = Passage(
        seconds,
        statistics.fmean(running.values() or [0]),
        num_steps,
        1000 * (after.step_s - before.step_s) / max(1, num_steps),
        await end_to_end(queue, requests, load),
        watched.ttft_s,
    )
    await redis.aclose()
    return passage


async def end_to_end(
    queue: Queue, requests: Sequence[Request], load: Sequence[LoadRequest]
) -> list[float]:
    """Return the seconds from submit to result of each request; check the lengths of the answers."""
    seconds = []
    for start in range(0, len(requests), 500):
        results = await queue.results([request.id for request in requests[start : start + 500]])
        for result, each in zip(results, load[start : start + 500], strict=True):
            if not result or result.body["usage"]["completion_tokens"] != each.max_tokens:
                raise RuntimeError("an answer has another length than was asked for")
            seconds.append((result.finished_ms - result.enqueued_ms) / 1000)
    return seconds


async def measure(options: argparse.Namespace) -> None:
    engine = InProcessEngine(options.engine_argv)
    info = await engine.start()
    print(
        f"{info.device}, vLLM {info.vllm_version}, {info.models[0]}, max_num_seqs {info.max_num_seqs},"
        f" decode graphs {info.has_decode_graphs}",
        flush=True,
    )
    print(
        "| round | refill | output tok/s | share | mean running | steps | ms a step | e2e p50, s | e2e p99, s |"
        " TTFT p50, ms | TTFT p99, ms |\n" + "| --- " * 11 + "|",
        flush=True,
    )
    await bare(engine, named("lognormal", max(8, options.requests // 8), 0, options.scale))
    shares: dict[str, list[float]] = {refill: [] for refill in options.refill}
    try:
        with running_server() as url:
            for round_number in range(1, options.rounds + 1):
                load = named("lognormal", options.requests, round_number, options.scale)
                for refill, share in (
                    await one_round(engine, info, load, url, options=options, number=round_number)
                ).items():
                    shares[refill].append(share)
    finally:
        await engine.close()
    for refill, values in shares.items():
        print(
            f"refill {refill}: share of the engine's own output tok/s, median of {len(values)} rounds:"
            f" {statistics.median(values):.3f}"
        )


async def one_round(
    engine: InProcessEngine,
    info: EngineInfo,
    load: Sequence[LoadRequest],
    url: str,
    *,
    options: argparse.Namespace,
    number: int,
) -> dict[str, float]:
    """Run the bare engine and each way to refill once, every second round in the reverse order."""
    tokens = sum(each.max_tokens for each in load)
    passages: dict[str, Passage] = {}
    alone_s = 0.0
    for way in [BARE, *options.refill][:: 1 if number % 2 else -1]:
        if way == BARE:
            alone_s = await bare(engine, load)
        else:
            passages[way] = await queued(
                engine, info, load, url, None if way == "auto" else int(way)
            )
    print(f"| {number} | {BARE} | {tokens / alone_s:,.0f} | 1 |" + " |" * 7, flush=True)
    for way, passage in passages.items():
        share = alone_s / passage.seconds
        print(
            f"| {number} | {way} | {tokens / passage.seconds:,.0f} | {share:.3f} | {passage.row()} |",
            flush=True,
        )
    return {way: alone_s / passage.seconds for way, passage in passages.items()}


def demo_argv() -> list[str]:
    from gristmill.local.demo_model import demo_model

    model = demo_model(Path.home() / ".cache" / "gristmill")
    flags = "--enforce-eager --max-num-seqs 64 --max-model-len 2048 --no-enable-prefix-caching"
    return ["--model", str(model), *flags.split()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure the share of the engine's own speed that the queue reaches."
    )
    parser.add_argument("--requests", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--scale", type=float, default=0.5, help="factor of all lengths; 1 for a GPU"
    )
    parser.add_argument(
        "--refill",
        type=lambda text: text.split(","),
        default=["auto"],
        help="values of GRISTMILL_REFILL to compare, such as 1,64,auto; auto is the worker's default",
    )
    parser.add_argument("engine_argv", nargs="*", help="vLLM's own flags, after --")
    options = parser.parse_args()
    options.engine_argv = options.engine_argv or demo_argv()
    configure_logging("ERROR")
    asyncio.run(measure(options))


if __name__ == "__main__":
    main()

"""Measure tokens per second through Redis and worker, relative to the engine without them.

    python benchmarks/engine_share.py -- --model PATH --max-num-seqs 128 ...     (vLLM's own flags)

One engine in one process serves both sides with the same settings. Each round runs the load in both
ways, every second round in the reverse order:

- Bare `AsyncLLM.generate` gets all requests at once.
- The worker's own loop claims the requests from Redis, vLLM's OpenAI layer answers them, and the
  loop settles them.

Prompts are token ids and outputs have a fixed length, so both sides do the same work. Turn prefix
caching off, or the second run of a load profits from the first. Without flags the demo's SmolLM2
runs on the CPU, with it off.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from ulid import ULID

from gristmill.bench.loads import LoadRequest, named
from gristmill.local.redis_server import running_server
from gristmill.shared.connection import connect
from gristmill.shared.log import configure_logging
from gristmill.shared.queue import Queue
from gristmill.worker.drain import Drain
from gristmill.worker.engine import EngineInfo, InProcessEngine
from gristmill.worker.liveness import Liveness
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.supervisor import Supervisor
from gristmill.worker.wiring import work


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


async def queued(
    engine: InProcessEngine, info: EngineInfo, load: Sequence[LoadRequest], url: str
) -> tuple[float, float]:
    """Run a load through Redis and the worker.

    Returns:
        Seconds from the start of the worker to the last record, and the mean number of running
        sequences over the steps until the queue was empty.
    """
    name = f"bench-{ULID()}"
    redis = connect(url)
    queue = Queue(redis, name)
    requests = [each.request(info.models[0]) for each in load]
    for start in range(0, len(requests), 128):
        await queue.submit(requests[start : start + 128])
    settings = WorkerSettings(redis_url=SecretStr(url), queue=name)
    drain = Drain(60)
    started_s = time.perf_counter()
    liveness = Liveness(600, 60, 60)
    supervisor = Supervisor(engine, settings, drain, liveness)
    working = asyncio.create_task(work(settings, supervisor, info, drain, liveness))
    running: dict[int, int] = {}  # running sequences by step
    while (counters := (await queue.stats()).counters).get("succeeded", 0) < len(requests):
        if working.done():
            working.result()
        if counters["queued"] and (stats := engine.stats()).running:
            running[stats.steps] = stats.running
        await asyncio.sleep(0.02)
    seconds = time.perf_counter() - started_s
    drain.start("benchmark")
    await working
    results = await queue.results([request.id for request in requests[:500]])
    tokens = [
        result.body["usage"]["completion_tokens"] for result in results if result and result.body
    ]
    if tokens != [each.max_tokens for each in load[:500]]:
        raise RuntimeError("answers have other lengths than were asked for")
    await redis.aclose()
    return seconds, statistics.fmean(running.values() or [0])


async def measure(options: argparse.Namespace) -> None:
    engine = InProcessEngine(options.engine_argv)
    info = await engine.start()
    print(
        f"{info.device}, vLLM {info.vllm_version}, {info.models[0]}, max_num_seqs {info.max_num_seqs}",
        flush=True,
    )
    print(
        "| round | engine alone, tok/s | through the queue, tok/s | share | mean running |\n| --- | --- | --- | --- | --- |",
        flush=True,
    )
    await bare(engine, named("lognormal", max(8, options.requests // 8), 0, options.scale))
    shares = []
    try:
        with running_server() as url:
            for round_number in range(1, options.rounds + 1):
                load = named("lognormal", options.requests, round_number, options.scale)
                if round_number % 2:
                    alone_s = await bare(engine, load)
                    queued_s, running = await queued(engine, info, load, url)
                else:
                    queued_s, running = await queued(engine, info, load, url)
                    alone_s = await bare(engine, load)
                shares.append(alone_s / queued_s)
                tokens = sum(each.max_tokens for each in load)
                print(
                    f"| {round_number} | {tokens / alone_s:,.0f} | {tokens / queued_s:,.0f} | {shares[-1]:.3f} | {running:.1f} |",
                    flush=True,
                )
    finally:
        await engine.close()
    print(
        f"share of the engine's own output tok/s, median of {len(shares)} rounds: {statistics.median(shares):.3f}"
    )


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
    parser.add_argument("engine_argv", nargs="*", help="vLLM's own flags, after --")
    options = parser.parse_args()
    options.engine_argv = options.engine_argv or demo_argv()
    configure_logging("ERROR")
    asyncio.run(measure(options))


if __name__ == "__main__":
    main()

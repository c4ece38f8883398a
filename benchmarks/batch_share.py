"""Compare a Gristmill batch with `vllm run-batch` on one engine: tokens per second, answers.

    python benchmarks/batch_share.py -- --model PATH --max-num-seqs 128 ...     (vLLM's own flags)

Each round runs one input file in both ways, every second round in the reverse order:

- vLLM's own `run_batch` reads the whole file and sends all lines to the engine at once.
- A steward in a separate process validates and feeds a batch, the worker's loop claims its requests
  from Redis, and the steward assembles the output file.

Both use the same engine, settings and OpenAI layer. Temperature is 0 and lengths are fixed. So both
do the same work, and the answers can be compared row by row. Without flags the demo's SmolLM2 runs
on the CPU.
"""

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
from engine_share import demo_argv
from pydantic import SecretStr

from gristmill.local.processes import die_with_parent
from gristmill.local.redis_server import running_server
from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_spec import BatchSpec
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.settings import BatchSettings
from gristmill.producer.batches.upload import Upload
from gristmill.shared.log import configure_logging
from gristmill.worker.drain import Drain
from gristmill.worker.engine import InProcessEngine
from gristmill.worker.liveness import Liveness
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.supervisor import Supervisor
from gristmill.worker.wiring import work

ENDPOINT = "/v1/chat/completions"
QUEUE = "bench"
WORDS = [
    "the",
    "queue",
    "feeds",
    "requests",
    "to",
    "workers",
    "and",
    "each",
    "answer",
    "comes",
    "back",
    "under",
    "its",
    "own",
    "name",
]


def lognormal(chance: random.Random, mu: float, sigma: float, low: int, high: int) -> int:
    return max(low, min(high, round(chance.lognormvariate(mu, sigma))))


def write_input(path: Path, seed: int, number: int, scale: float, model: str) -> int:
    """Write a file of chats with lognormal lengths, and return its number of output tokens."""
    chance = random.Random(seed)
    num_tokens = 0
    with path.open("wb") as stream:
        for i in range(number):
            words = max(4, int(scale * lognormal(chance, 4.5, 0.8, 16, 1024)))
            max_tokens = max(4, int(scale * lognormal(chance, 4.5, 0.9, 8, 512)))
            content = f"{i}: " + " ".join(chance.choices(WORDS, k=words))
            body = {
                "model": model, "messages": [{"role": "user", "content": content}], "temperature": 0,
                "max_tokens": max_tokens, "ignore_eos": True,
            }  # fmt: skip
            fields = {"custom_id": f"row-{i}", "method": "POST", "url": ENDPOINT, "body": body}
            stream.write(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
            num_tokens += max_tokens
    return num_tokens


async def by_vllm(engine: InProcessEngine, argv: list[str], source: Path) -> tuple[float, bytes]:
    """Run a file with vLLM's `run_batch`; return its seconds and its rows."""
    try:
        from vllm.entrypoints.launchers import run_batch
    except ImportError:
        from vllm.entrypoints.openai import run_batch
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    output = source.with_suffix(".vllm")
    parser = run_batch.make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(["-i", str(source), "-o", str(output), *argv])
    llm: Any = engine._core.engine  # type: ignore[union-attr]
    started_s = time.perf_counter()
    await run_batch.run_batch(llm, args)
    return time.perf_counter() - started_s, output.read_bytes()


async def by_batch(batches: Batches, source: Path) -> tuple[float, bytes]:
    """Run a file as a batch; return the seconds from its creation to its end, and its rows."""
    async with Upload(batches.files, "default") as upload:
        upload.write(source.read_bytes())
        file = await upload.finish(source.name)
    started_s = time.perf_counter()
    batch = await batches.create("default", BatchSpec(input_file_id=file.id, endpoint=ENDPOINT))
    while not (record := await batches.batch("default", batch.id)).is_final:
        await asyncio.sleep(0.1)
    seconds = time.perf_counter() - started_s
    if record.request_counts.completed != record.request_counts.total:
        raise RuntimeError(f"{record.status}: {record.request_counts}")
    return seconds, b"".join([chunk async for chunk in await batches.results("default", batch.id)])


def answers(rows: bytes) -> dict[str, str]:
    """Return the text of each row by its custom_id."""
    found = {}
    for row in map(orjson.loads, rows.splitlines()):
        found[row["custom_id"]] = row["response"]["body"]["choices"][0]["message"]["content"]
    return found


async def measure(options: argparse.Namespace, url: str, folder: Path) -> None:
    settings = BatchSettings(
        redis_url=SecretStr(url), queue=QUEUE, storage_url=str(folder / "storage")
    )
    engine = InProcessEngine(options.engine_argv)
    info = await engine.start()
    print(f"{info.device}, vLLM {info.vllm_version}, {info.models[0]}, max_num_seqs {info.max_num_seqs}")  # fmt: skip
    drain, liveness = Drain(60), Liveness(600, 60, 60)
    of_worker = WorkerSettings(redis_url=SecretStr(url), queue=QUEUE)
    supervisor = Supervisor(engine, of_worker, drain, liveness)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.close)
        store = await stack.enter_async_context(BatchStore.from_settings(settings))
        batches = Batches(store)
        stack.callback(start_steward(settings).terminate)
        working = asyncio.create_task(work(of_worker, supervisor, info, drain, liveness))
        await rounds(options, engine, info.models[0], batches, folder)
        drain.start("benchmark")
        await working


async def rounds(
    options: argparse.Namespace, engine: InProcessEngine, model: str, batches: Batches, folder: Path
) -> None:
    source = folder / "in.jsonl"
    write_input(source, 0, max(8, options.requests // 8), options.scale, model)
    await by_vllm(engine, options.engine_argv, source)
    await by_batch(batches, source)
    print("| round | run-batch, tok/s | batch, tok/s | share | same answers |\n| --- | --- | --- | --- | --- |")  # fmt: skip
    shares = []
    for number in range(1, options.rounds + 1):
        tokens = write_input(source, number, options.requests, options.scale, model)
        if number % 2:
            alone_s, theirs = await by_vllm(engine, options.engine_argv, source)
            batch_s, ours = await by_batch(batches, source)
        else:
            batch_s, ours = await by_batch(batches, source)
            alone_s, theirs = await by_vllm(engine, options.engine_argv, source)
        shares.append(alone_s / batch_s)
        expected = answers(theirs)
        same = sum(expected[name] == text for name, text in answers(ours).items())
        print(
            f"| {number} | {tokens / alone_s:,.0f} | {tokens / batch_s:,.0f} | {shares[-1]:.3f} | {same} of {len(expected)} |",
            flush=True,
        )
    print(f"share of run-batch's output tok/s, median of {len(shares)} rounds: {statistics.median(shares):.3f}")  # fmt: skip


def start_steward(settings: BatchSettings) -> "subprocess.Popen[bytes]":
    environment = os.environ | {
        "REDIS_URL": settings.redis_url.get_secret_value(),
        "GRISTMILL_QUEUE": settings.queue,
        "GRISTMILL_STORAGE_URL": settings.storage_url,
        "GRISTMILL_HEALTH_PORT": "0",
    }
    return subprocess.Popen(  # our own command
        [sys.executable, "-m", "gristmill.shared.cli", "steward"],
        env=environment,
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a batch against vllm run-batch.")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--scale", type=float, default=0.3, help="factor of all lengths; 1 for a GPU"
    )
    parser.add_argument("engine_argv", nargs="*", help="vLLM's own flags, after --")
    options = parser.parse_args()
    options.engine_argv = options.engine_argv or demo_argv()
    configure_logging("ERROR")
    with tempfile.TemporaryDirectory() as folder, running_server() as url:
        asyncio.run(measure(options, url, Path(folder)))


if __name__ == "__main__":
    main()

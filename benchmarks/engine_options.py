r"""Measure what vLLM's own options change, on the same load, as ratios to the first option.

    python benchmarks/engine_options.py                                     (the demo's SmolLM2 on the CPU)
    python benchmarks/engine_options.py --load prefix -- --model PATH --max-num-seqs 1024 ...
    python benchmarks/engine_options.py --load repeat --option default= \
        --option 'ngram 8=--speculative-config.method ngram --speculative-config.num_speculative_tokens 8' -- --model PATH

The words after `--` are vLLM's flags for every row. An option is a name and the additional flags of
its row. Each row runs in a separate process. The first row runs again at the end; the distance of
its ratio from 1 is the error of the other ratios. Prompts are token ids and answers have a fixed
length, so all rows do the same work. The loads:

- `mixed`: one prompt in four is long.
- `prefix`: 8 groups, each with a long common prefix.
- `repeat`: prompts that repeat themselves, like those of extraction and code edits.
"""

import argparse
import asyncio
import json
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gristmill.local.demo_model import demo_model
from gristmill.worker.engine import InProcessEngine

Prompt = list[int]

FOLDER = Path.home() / ".cache" / "gristmill"

NGRAM = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4,"prompt_lookup_min":2}'
ROWS: dict[str, list[tuple[str, str]]] = {
    "mixed": [
        ("default", ""),
        ("--max-num-batched-tokens 512", "--max-num-batched-tokens 512"),
        ("--no-enable-chunked-prefill", "--no-enable-chunked-prefill"),
    ],
    "prefix": [("default", ""), ("--no-enable-prefix-caching", "--no-enable-prefix-caching")],
    "repeat": [("default", ""), ("ngram, 4 tokens", f"--speculative-config {shlex.quote(NGRAM)}")],
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One row: medians over its rounds."""

    tokens_per_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    tpot_p50_ms: float
    tpot_p95_ms: float


def some_ids(chance: random.Random, number: int) -> Prompt:
    return [chance.randrange(100, 40_000) for _ in range(number)]


def mixed(chance: random.Random, scale: float) -> tuple[Prompt, int]:
    low, high = (768, 1024) if chance.random() < 0.25 else (16, 64)
    return some_ids(chance, int(scale * chance.randint(low, high))), chance.randint(16, 96)


def prefix(chance: random.Random, scale: float) -> tuple[Prompt, int]:
    group = random.Random(f"{chance.randrange(8)} of {scale}")
    return some_ids(group, int(scale * 768)) + some_ids(chance, 32), 32


def repeat(chance: random.Random, scale: float) -> tuple[Prompt, int]:
    return some_ids(chance, 24) * max(4, int(scale * 8)), 96


LOADS = {"mixed": mixed, "prefix": prefix, "repeat": repeat}


async def one(engine: InProcessEngine, model: str, prompt: Prompt, length: int) -> dict[str, float]:
    """Run one request, and return its times in seconds and its tokens."""
    body = {"model": model, "prompt": prompt, "max_tokens": length, "temperature": 0}
    started_s = time.perf_counter()
    response = await engine.post(
        "/v1/completions", json.dumps(body | {"ignore_eos": True}).encode()
    )
    seconds = time.perf_counter() - started_s
    if response.status != 200 or response.output_tokens != length:
        raise RuntimeError(f"{response.status}: {response.body[:300]!r}")
    ttft_s = response.ttft_s or 0.0
    return {"tokens": length, "ttft_s": ttft_s, "tpot_s": (seconds - ttft_s) / (length - 1)}


async def one_round(
    engine: InProcessEngine, model: str, options: argparse.Namespace, seed: int
) -> dict[str, float]:
    """Run the load once, with all requests at once."""
    chance = random.Random(seed)
    load = [LOADS[options.load](chance, options.scale) for _ in range(options.requests)]
    started_s = time.perf_counter()
    rows = await asyncio.gather(*(one(engine, model, *each) for each in load))
    seconds = time.perf_counter() - started_s
    ttft = statistics.quantiles([row["ttft_s"] for row in rows], n=20)
    tpot = statistics.quantiles([row["tpot_s"] * 1000 for row in rows], n=20)
    return {
        "tokens_per_s": sum(row["tokens"] for row in rows) / seconds,
        "ttft_p50_s": ttft[9],
        "ttft_p95_s": ttft[18],
        "tpot_p50_ms": tpot[9],
        "tpot_p95_ms": tpot[18],
    }


async def measure(options: argparse.Namespace) -> Measured:
    engine = InProcessEngine(options.engine_argv)
    info = await engine.start()
    try:
        model = info.models[0]
        await one(engine, model, some_ids(random.Random(0), 16), 8)
        # Each round has other prompts. Otherwise the prefix cache would have all of them.
        rounds = [
            await one_round(engine, model, options, seed) for seed in range(1, 1 + options.rounds)
        ]
    finally:
        await engine.close()
    names = rounds[0].keys()
    return Measured(**{name: statistics.median(each[name] for each in rounds) for name in names})


def measured_apart(options: argparse.Namespace, flags: str) -> Measured | None:
    """Measure in a separate process, so that no row depends on an earlier one.

    Returns:
        The row; None if the engine did not start with these flags or failed. Its stderr has the
        reason.
    """
    command = [sys.executable, __file__, "--only", "--load", options.load]
    command += ["--requests", str(options.requests), "--rounds", str(options.rounds)]
    command += ["--scale", str(options.scale), "--", *options.engine_argv, *shlex.split(flags)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603  # this script
    if done.returncode:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith(b'{"tokens_per_s"')]
    return Measured(**json.loads(lines[-1]))  # vLLM logs to stdout too


def row(name: str, measured: Measured, base: Measured) -> str:
    return (
        f"| {name} | {measured.tokens_per_s:,.0f} | {measured.tokens_per_s / base.tokens_per_s:.2f} "
        f"| {measured.ttft_p50_s:.2f}, {measured.ttft_p95_s:.2f} "
        f"| {measured.tpot_p50_ms:,.0f}, {measured.tpot_p95_ms:,.0f} |"
    )


def compare(options: argparse.Namespace) -> None:
    rows = options.option or ROWS[options.load]
    print(f"load {options.load}: {options.requests} requests, {options.rounds} rounds", flush=True)
    print("| option | output tok/s | ratio | TTFT p50, p95, s | TPOT p50, p95, ms |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    base: Measured | None = None
    for name, flags in [*rows, (f"{rows[0][0]}, once more", rows[0][1])]:
        measured = measured_apart(options, flags)
        if measured is None:
            print(f"| {name} | failed | | | |", flush=True)
            continue
        base = base or measured
        print(row(name, measured, base), flush=True)


def an_option(text: str) -> tuple[str, str]:
    name, has_flags, flags = text.partition("=")
    if not has_flags:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=FLAGS")
    return name, flags


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--load", choices=LOADS, default="mixed")
    parser.add_argument("--option", type=an_option, action="append", help="row, as NAME=FLAGS")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the prompts' lengths")
    parser.add_argument("--only", action="store_true", help=argparse.SUPPRESS)
    ours, engine_argv = split(sys.argv[1:])
    options = parser.parse_args(ours, argparse.Namespace(engine_argv=engine_argv or on_the_cpu()))
    if options.only:
        print(json.dumps(asdict(asyncio.run(measure(options)))))
    else:
        compare(options)


def split(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def on_the_cpu() -> Sequence[str]:
    flags: list[Any] = ["--model", demo_model(FOLDER), "--enforce-eager", "--max-model-len", 2048]
    flags += ["--max-num-seqs", 16, "--max-num-batched-tokens", 2048]
    return list(map(str, flags))


if __name__ == "__main__":
    main()

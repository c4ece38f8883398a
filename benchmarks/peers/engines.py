"""Run the same chats through Gristmill, through other batch runners on vLLM, and transformers.

    python benchmarks/peers/engines.py [--requests 96] [--rounds 3] [--scale 0.25] [-- vLLM's own flags]

Each system is a script in `systems/` and runs in a separate process. All have the same model,
flags, input file and threads, temperature 0 and fixed lengths. The systems take turns, each round
in another order, without a warm-up. `start` is the time until the engine waits for requests. The
run lasts from then until the last answer arrives. Ray has a separate environment, which also sees
the installed vLLM. Without flags the demo's SmolLM2 runs on the CPU.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from gristmill.local.processes import die_with_parent

sys.path.append(str(Path(__file__).resolve().parents[1]))

from batch_share import write_input
from engine_share import demo_argv
from peers.venvs import NotInstalled, environment

BENCHMARKS = Path(__file__).resolve().parents[1]
SYSTEMS = BENCHMARKS / "peers" / "systems"
RUN_LIMIT_S = 1200.0
RAY_PACKAGES = (
    "ray[data]", "jsonref", "jsonschema", "hf_transfer", "pybind11", "meson", "typer",
)  # fmt: skip
"""Packages that the batch stages of `ray[llm]` import, without the vLLM release that it pins."""


@dataclass(frozen=True, slots=True)
class System:
    """One way to run a batch: a script of `systems/`, and its packages in addition to vLLM."""

    name: str
    script: str
    packages: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """The report of one process: seconds, answers and versions."""

    start_s: float
    run_s: float
    answers: Mapping[str, tuple[str, int]]
    versions: str

    @property
    def output_tokens(self) -> int:
        return sum(number for _, number in self.answers.values())


ALL = (
    System("Gristmill", "gristmill_run.py"),
    System("vllm run-batch", "run_batch.py"),
    System("LLM.generate", "llm_generate.py"),
    System("Ray Data LLM", "ray_data.py", RAY_PACKAGES),
    System("transformers, padded batches of 32", "static_batch.py"),
)


class SystemFailed(Exception):
    """A system took too long, wrote no report or gave wrong lengths; the text has the reason."""


def cpu_environment() -> dict[str, str]:
    """Return the worker's variables for an engine on a CPU: all cores, no second process."""
    return {
        "OMP_NUM_THREADS": str(os.cpu_count()),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


def run(
    system: System, python: Path, source: Path, argv: Sequence[str], more: Mapping[str, str]
) -> Run:
    """Run one system on one input file.

    Raises:
        SystemFailed: It did not end within 20 minutes, wrote no report, or an answer has a wrong
            length.
    """
    report = source.with_name(f"{system.script}.json")
    report.unlink(missing_ok=True)
    quiet = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    spawned = {
        "PEER_SPAWNED_S": str(time.time()),
        "GRISTMILL_HEALTH_PORT": "0",
        "PYTHONPATH": f"{BENCHMARKS}:{os.environ.get('PYTHONPATH', '')}",
    }
    command = [str(python), str(SYSTEMS / system.script), str(source), str(report), "--", *argv]
    with source.with_name(f"{system.script}.log").open("w+") as log:
        process = subprocess.Popen(  # noqa: S603  # our own scripts
            command,
            env={**os.environ, **quiet, **more, **spawned},
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )
        try:
            process.wait(RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise SystemFailed(f"not done in {RUN_LIMIT_S:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):  # processes that it left behind, such as an engine's
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not report.exists():
            log.seek(0)
            raise SystemFailed(" ".join(log.read().splitlines()[-1:])[:300])
    found = Run(**json.loads(report.read_text()))
    check(found, source)
    return found


def check(found: Run, source: Path) -> None:
    for line in map(json.loads, source.read_text().splitlines()):
        wanted, name = line["body"]["max_tokens"], line["custom_id"]
        if found.answers[name][1] != wanted:
            raise SystemFailed(f"{name} has {found.answers[name][1]} tokens of {wanted}")


def same(found: Run, ours: Run) -> str:
    number = sum(text == ours.answers[name][0] for name, (text, _) in found.answers.items())
    return f"{number} of {len(ours.answers)}"


def spread(numbers: Sequence[float], digits: int) -> str:
    low, high = min(numbers), max(numbers)
    return f"{statistics.median(numbers):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def row(name: str, runs: Sequence[Run], ours: Sequence[Run]) -> str:
    speeds = [run.output_tokens / run.run_s for run in runs]
    ratios = [b.run_s / a.run_s for a, b in zip(runs, ours, strict=False)]
    cells = [
        name,
        spread(speeds, 0),
        spread(ratios, 2) if ratios else "",
        spread([run.start_s for run in runs], 0),
        same(runs[0], ours[0]) if ratios else "",
        runs[0].versions,
    ]
    return f"| {' | '.join(cells)} |"


def table(runs: Mapping[str, Sequence[Run]], failed: Mapping[str, str]) -> str:
    lines = [
        "| system | output tok/s | of Gristmill's, by round | start, s | same answers | versions |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    ours = runs.get(ALL[0].name, [])
    for system in ALL:
        if system.name in failed:
            lines.append(f"| {system.name} | failed: {failed[system.name]} | | | | |")
        elif runs.get(system.name):
            lines.append(row(system.name, runs[system.name], ours))
    return "\n".join(lines)


def interpreter(system: System) -> Path:
    if not system.packages:
        return Path(sys.executable)
    return environment("ray", system.packages, with_ours=True)


def measure(options: argparse.Namespace, folder: Path) -> None:
    runs: dict[str, list[Run]] = {}
    failed: dict[str, str] = {}
    more = {} if options.engine_argv else cpu_environment()
    argv = options.engine_argv or demo_argv()
    model = argv[argv.index("--model") + 1]
    source = folder / "in.jsonl"
    systems = [s for s in ALL if not options.only or any(w in s.name for w in options.only)]
    for turn in range(options.rounds):
        tokens = write_input(source, turn + 1, options.requests, options.scale, model)
        for system in [*systems[turn % len(systems) :], *systems[: turn % len(systems)]]:
            if system.name in failed:
                continue
            try:
                found = run(system, interpreter(system), source, argv, more)
            except (SystemFailed, NotInstalled) as error:
                failed[system.name] = str(error)
                print(f"round {turn + 1}: {system.name}: {error}", file=sys.stderr, flush=True)
                continue
            runs.setdefault(system.name, []).append(found)
            print(
                f"round {turn + 1}: {system.name}: started in {found.start_s:.1f} s, {tokens} tokens in {found.run_s:.1f} s",
                file=sys.stderr,
                flush=True,
            )
        print(f"after round {turn + 1}:\n{table(runs, failed)}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure Gristmill beside other batch runners.")
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=0.25, help="factor of lengths; 1 for a GPU")
    parser.add_argument("--only", nargs="*", default=[], help="words of the systems' names to run")
    parser.add_argument("engine_argv", nargs="*", help="vLLM's own flags, after --")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        measure(options, Path(folder))


if __name__ == "__main__":
    main()

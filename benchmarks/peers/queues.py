"""Run a task that does nothing through Gristmill and through each Python queue on Redis.

    python benchmarks/peers/queues.py [--tasks 5000] [--rounds 3] [--only WORD ...]

Each row has one producer process and one worker process. All rows use one Valkey, which is emptied
before each. Each peer has a separate environment (`venvs.py`) with its newest release. The rows
take turns, each round in another order.

- `enqueue` runs without a worker.
- `drain` starts the worker on the full queue and counts from the first done task to the last, for
  at most 20 s.
- `idle` is one task at a time, from before its enqueue until the producer has the result. The
  producer waits as the peer's own client does; a client that polls does so every 5 ms.
- `ended within` shows what a worker's death costs. 8 tasks start and cannot end yet. The script
  kills the worker and its children with `kill -9`, lets tasks end at once from then on, and starts
  a new worker. It counts the tasks that end within `--kill-wait-s`. All rows do this once, at the
  same time, each on its own server.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from gristmill.local.redis_server import running_server, server_binary

sys.path.append(str(Path(__file__).resolve().parents[1]))

from peers.bench import Bench, PeerFailed
from peers.rows import ROWS, Row
from peers.venvs import NotInstalled, environment, versions

DRAIN_LIMIT_S = 20.0
NUM_IDLE = 100
NUM_SLOW = 8
BEGINNING_S = 1.0
"""Seconds from the first task's start to the kill, so that a worker can start several tasks."""

Timing = tuple[float, float, float]
"""Tasks enqueued per second, tasks drained per second, milliseconds of an idle task."""


def timing(bench: Bench, number: int) -> Timing:
    bench.empty()
    enqueue_s = bench.call("submit", number)[0]
    with bench.worker():
        first = bench.until(1)
        started_s = time.perf_counter()
        last = bench.until(number, DRAIN_LIMIT_S)
        drain_s = time.perf_counter() - started_s
    if last == first:
        raise PeerFailed(f"all {number} were done between two looks; take more --tasks")
    bench.empty()
    with bench.worker():
        idle_s = statistics.median(bench.call("answers", NUM_IDLE))
    return number / enqueue_s, (last - first) / drain_s, idle_s * 1000


def killed(bench: Bench, wait_s: float) -> str:
    """Kill a worker; return, as text, how many of its tasks ended and when the last ended."""
    with bench.worker():
        bench.call("slow", NUM_SLOW)
        bench.until_marked("start", 1)
        time.sleep(BEGINNING_S)
    bench.gate.touch()
    started_s = time.monotonic()
    with bench.worker():
        ended = bench.until_marked("end", NUM_SLOW, wait_s)
    twice = len(ended) - len(set(ended))
    seconds = f" in {time.monotonic() - started_s:.0f} s" if len(set(ended)) == NUM_SLOW else ""
    return f"{len(set(ended))} of {NUM_SLOW}{seconds}" + (f", {twice} twice" if twice else "")


def rounds(benches: Sequence[Bench], number: int, num_rounds: int) -> dict[str, list[Timing] | str]:
    """Return the timings of each row, or the reason of its failure."""
    found: dict[str, list[Timing] | str] = {}
    for turn in range(num_rounds):
        for bench in [*benches[turn % len(benches) :], *benches[: turn % len(benches)]]:
            before = found.setdefault(bench.row.name, [])
            if isinstance(before, str):
                continue
            try:
                before.append(timing(bench, number))
            except PeerFailed as error:
                found[bench.row.name] = str(error)
            print(f"round {turn + 1}: {bench.row.name}: {found[bench.row.name]}", file=sys.stderr)
    return found


def deaths(rows: Sequence[tuple[Row, Path]], wait_s: float, folder: Path) -> dict[str, str]:
    """Return the result of `killed` for each row.

    All rows run at the same time, because they mostly wait.
    """

    def one(item: tuple[Row, Path]) -> str:
        with running_server() as url:
            try:
                return killed(Bench(item[0], item[1], url, folder), wait_s)
            except PeerFailed as error:
                return str(error)

    with ThreadPoolExecutor(len(rows)) as pool:
        return dict(zip([row.name for row, _ in rows], pool.map(one, rows), strict=True))


def cells(timings: Sequence[Timing]) -> list[str]:
    """Return the median and range of each column."""
    shown = []
    for column, digits in zip(zip(*timings, strict=True), (0, 0, 1), strict=True):
        low, middle, high = min(column), statistics.median(column), max(column)
        shown.append(f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})")
    return shown


def median_drain(timings: Sequence[Timing]) -> float:
    return statistics.median(drained for _, drained, _ in timings)


def table(found: dict[str, list[Timing] | str], died: dict[str, str], wait_s: float) -> str:
    ours = next(iter(found.values()))
    lines = [
        f"| queue | enqueue/s | drain/s | drain, of Gristmill's | idle, ms | ended within {wait_s:.0f} s of `kill -9` |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, timings in found.items():
        if isinstance(timings, str):
            lines.append(f"| {name} | failed: {timings} | | | | |")
            continue
        enqueue, drain, idle = cells(timings)
        ratio = "" if isinstance(ours, str) else f"{median_drain(timings) / median_drain(ours):.2f}"
        lines.append(f"| {name} | {enqueue} | {drain} | {ratio} | {idle} | {died.get(name, '')} |")
    return "\n".join(lines)


def installed(rows: Sequence[Row]) -> tuple[list[tuple[Row, Path]], dict[str, list[Timing] | str]]:
    """Install the rows; return the interpreter of each, or the reason of a failure."""
    ready: list[tuple[Row, Path]] = []
    missing: dict[str, list[Timing] | str] = {}
    for row in rows:
        try:
            python = Path(sys.executable)
            if row.packages:
                name = row.packages[0].split("[")[0]
                python = environment(name, row.packages)
                print(f"{row.name}: {versions(python, row.packages)}")
            ready.append((row, python))
        except NotInstalled as error:
            missing[row.name] = f"not installed: {error}"
    return ready, missing


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the queue beside its peers.")
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kill-wait-s", type=float, default=120, help="0 skips the kill")
    parser.add_argument("--only", nargs="*", default=[], help="words of the rows' names to run")
    options = parser.parse_args()
    wanted = [row for row in ROWS if not options.only or any(w in row.name for w in options.only)]
    ready, missing = installed(wanted)
    print(f"server: {server_binary().name}; arguments: {json.dumps(vars(options))}\n", flush=True)
    with TemporaryDirectory() as name, running_server() as url:
        folder = Path(name)
        benches = [Bench(row, python, url, folder) for row, python in ready]
        found = rounds(benches, options.tasks, options.rounds)
        died = deaths(ready, options.kill_wait_s, folder) if options.kill_wait_s else {}
    print(table(found | missing, died, options.kill_wait_s))


if __name__ == "__main__":
    main()

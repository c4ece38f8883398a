"""Run a Parquet table of many rows through `gristmill submit`; measure it and check its output.

    python benchmarks/tables.py                           (200,000 rows)
    python benchmarks/tables.py --rows 10000000 --kills 5
    python benchmarks/tables.py --copies 0.5 --dedupe     (half of the rows ask the same as another)

Separate processes run a Valkey, workers with the stub engine, and the command. `--kills` kills the command
and a worker at random points, and starts the same command again. At the end the output must have each row
once and in order, and the queue must have ended each request once.
"""

import argparse
import asyncio
import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from measured_processes import GRISTMILL, WORKER, MeasuredProcesses

from gristmill.local.processes import free_port
from gristmill.local.redis_server import server_binary
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue

GROUP_ROWS = 100_000
WORDS = [
    "the",
    "review",
    "says",
    "that",
    "this",
    "thing",
    "works",
    "well",
    "and",
    "was",
    "worth",
    "its",
    "price",
]


class Processes(MeasuredProcesses):
    """A Valkey, the workers and the command."""

    def __init__(self, folder: Path, num_workers: int, options: list[str]) -> None:
        port = free_port()
        self.redis_url = f"redis://127.0.0.1:{port}/0"
        environment = {
            "REDIS_URL": self.redis_url, "GRISTMILL_HEALTH_PORT": "0", "GRISTMILL_LEASE_S": "5",
            "MAX_IN_FLIGHT": "1024",
        }  # fmt: skip
        redis = (str(server_binary()), "--port", str(port), "--bind", "127.0.0.1", "--save", "")
        command = (
            *GRISTMILL, "submit", "in.parquet", "--prompt", "Label this: {text}", "--params", "params.json",
            "--wait", "-o", "out.parquet", *options,
        )  # fmt: skip
        commands = {"redis": redis, "worker": WORKER, "submit": command}
        super().__init__(
            commands, {"redis": 1, "worker": num_workers, "submit": 1}, environment, folder
        )

    def kill(self, chance: random.Random) -> None:
        """Kill the command and a worker, and start them again."""
        for kind in ("submit", "worker"):
            self.kill_one(kind, chance)

    def code(self) -> int | None:
        """Return the exit code of the command, or None while it runs."""
        return self._running["submit"][0].poll()


def write_input(path: Path, num_rows: int, copies: float) -> None:
    """Write the table: a number, a text of about 200 characters that repeats for copies, and a list."""
    chance = random.Random(2)
    num_texts = max(1, round(num_rows * (1 - copies)))
    schema = pa.schema([("n", pa.int64()), ("text", pa.string()), ("tags", pa.list_(pa.int32()))])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, num_rows, GROUP_ROWS):
            numbers = range(start, min(start + GROUP_ROWS, num_rows))
            texts = [f"{n % num_texts} {' '.join(chance.choices(WORDS, k=36))}" for n in numbers]
            if copies:
                texts = [f"{n % num_texts} {' '.join(WORDS * 3)}" for n in numbers]
            table = pa.table([list(numbers), texts, [[n % 7] for n in numbers]], schema=schema)
            writer.write_table(table)


def check_output(source: Path, output: Path) -> tuple[int, int]:
    """Return the rows of an output, and how many of them are not the input's row in its place."""
    num_rows = num_wrong = 0
    reader = pq.ParquetFile(output)
    for batch in reader.iter_batches(columns=["n", "answer", "error"]):
        numbers = batch.column(0).to_pylist()
        answers = batch.column(1).to_pylist()
        for number, answer in zip(numbers, answers, strict=True):
            num_wrong += number != num_rows or not answer
            num_rows += 1
    columns = pq.ParquetFile(source).schema_arrow.names
    same = pq.ParquetFile(output).schema_arrow.names[: len(columns)] == columns
    return num_rows, num_wrong if same else num_rows


async def watch(processes: Processes, num_requests: int, kills: list[float]) -> int:
    """Wait for the command's end, and kill at these shares of its progress; return the requests that ended."""
    chance = random.Random(1)
    redis = connect(processes.redis_url)
    queue, num_ended = Queue(redis), 0
    try:
        while processes.code() is None:
            with suppress(Exception):  # Redis may not be up yet
                num_ended = (await queue.stats()).counters.get("succeeded", 0)
            if kills and num_ended >= kills[0] * num_requests:
                kills.pop(0)
                processes.kill(chance)
                print(f"  killed command and worker at {num_ended:,}", flush=True)
            processes.measure()
            await asyncio.sleep(0.2)
        return (await queue.stats()).counters.get("succeeded", 0)
    finally:
        await redis.aclose()


def measure(options: argparse.Namespace, folder: Path) -> None:
    write_input(folder / "in.parquet", options.rows, options.copies)
    (folder / "params.json").write_bytes(orjson.dumps({"max_tokens": 8}))
    chance = random.Random(options.seed)
    kills = sorted(chance.random() for _ in range(options.kills))
    num_requests = round(options.rows * (1 - options.copies)) if options.dedupe else options.rows
    processes = Processes(folder, options.workers, ["--dedupe"] if options.dedupe else [])
    began_s = time.perf_counter()
    try:
        num_ended = asyncio.run(watch(processes, num_requests, kills))
        ended_s = time.perf_counter()
    finally:
        processes.stop()
    if processes.code() != 0:
        raise SystemExit((folder / "submit.log").read_text()[-2_000:])
    num_rows, num_wrong = check_output(folder / "in.parquet", folder / "out.parquet")
    peaks = ", ".join(f"{kind} {mb} MB" for kind, mb in processes.peak_mb.items())
    took_s = ended_s - began_s
    print(
        f"{options.rows:,} rows in {took_s:,.0f} s, {options.rows / took_s:,.0f} rows/s, with {options.kills} kills\n"
        f"{num_rows:,} rows in the output, {num_wrong:,} of them wrong or out of order;"
        f" {num_ended:,} requests ended for {num_requests:,}\n"
        f"peak memory: {peaks}"
    )
    if (num_rows, num_wrong, num_ended) != (options.rows, 0, num_requests):
        raise SystemExit("the output is not right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--copies", type=float, default=0, help="share of rows that repeat another")
    parser.add_argument("--dedupe", action="store_true")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder))


if __name__ == "__main__":
    main()

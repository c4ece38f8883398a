"""A batch of a million lines through stewards and workers that answer at once: time, memory, exactness.

    python benchmarks/batch_million.py                    (a million lines)
    python benchmarks/batch_million.py --kills 5          (and kill -9 of each kind of process, five times)

Everything is a process of its own: a Redis, stewards, workers with the stub engine, and this one, which
creates the batch, watches it and counts its rows. Peak memory is the largest of any process of a kind.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import orjson
from pydantic import SecretStr

from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.batches.service import Batches
from gristmill.producer.batches.settings import BatchSettings
from gristmill.shared.server import die_with_parent, running_server

TENANT = "default"
ENDPOINT = "/v1/chat/completions"
COMMANDS = {
    "worker": (sys.executable, str(Path(__file__).parents[1] / "tests" / "stub_worker.py")),
    "steward": (sys.executable, "-m", "gristmill.shared.cli", "steward"),
}


class Fleet:
    """Processes of several kinds, killed and started anew.

    Args:
        environment: Of all of them.
        numbers: How many of each kind.
    """

    def __init__(self, environment: dict[str, str], numbers: dict[str, int]) -> None:
        self._environment = environment
        self._running = {kind: [self._start(kind) for _ in range(n)] for kind, n in numbers.items()}
        self.peak_mb: Counter[str] = Counter()
        self.num_killed = 0

    def _start(self, kind: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603  # our own commands
            COMMANDS[kind],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # nothing here has threads
        )

    def measure(self) -> None:
        """Note the peak memory of each kind."""
        for kind, processes in self._running.items():
            for process in processes:
                with suppress(OSError, IndexError):
                    status = Path(f"/proc/{process.pid}/status").read_text()
                    peak_kb = int(status.split("VmHWM:")[1].split()[0])
                    self.peak_mb[kind] = max(self.peak_mb[kind], peak_kb // 1024)

    def kill_one_of_each(self, chance: random.Random) -> None:
        """Kill -9 one process of each kind, and start another."""
        for kind, processes in self._running.items():
            number = chance.randrange(len(processes))
            processes[number].kill()
            processes[number].wait()
            processes[number] = self._start(kind)
            self.num_killed += 1

    def stop(self) -> None:
        """Let all of them stop."""
        for processes in self._running.values():
            for process in processes:
                process.terminate()
        for processes in self._running.values():
            for process in processes:
                process.wait()


def lines(number: int) -> Iterator[bytes]:
    for i in range(number):
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": f"say {i}"}],
            "max_tokens": 8,
        }
        yield orjson.dumps(
            {"custom_id": f"c{i}", "method": "POST", "url": ENDPOINT, "body": body},
            option=orjson.OPT_APPEND_NEWLINE,
        )


async def create(batches: Batches, number: int) -> BatchRecord:
    upload = batches.files.upload(TENANT, "million.jsonl", "batch")
    for line in lines(number):
        upload.write(line)
    file = await upload.finish()
    return await batches.create(TENANT, input_file_id=file.id, endpoint=ENDPOINT)


async def watch(batches: Batches, batch: str, fleet: Fleet, kills: list[float]) -> BatchRecord:
    """Return the batch when it has ended; kill at these shares of it."""
    chance = random.Random(1)
    while True:
        record = await batches.batch(TENANT, batch)
        counts = record.request_counts
        if record.is_final and (await batches.registry.state(batch)).phase is None:
            return record
        if kills and counts.finished >= kills[0] * (counts.total or 10**9):
            kills.pop(0)
            fleet.kill_one_of_each(chance)
            print(f"  killed one of each kind at {counts.finished:,}", flush=True)
        fleet.measure()
        await asyncio.sleep(0.25)


async def count_rows(batches: Batches, record: BatchRecord) -> Counter[str]:
    """Count each custom_id in both files."""
    seen: Counter[str] = Counter()
    rest = b""
    async for chunk in await batches.results(TENANT, record.id):
        *rows, rest = (rest + chunk).split(b"\n")
        seen.update(row.split(b'"custom_id":"', 1)[1].split(b'"', 1)[0].decode() for row in rows)
    return seen


async def measure(options: argparse.Namespace, url: str, folder: str) -> None:
    settings = BatchSettings(redis_url=SecretStr(url), storage_url=f"{folder}/storage")
    environment = os.environ | {
        "REDIS_URL": url,
        "GRISTMILL_STORAGE_URL": settings.storage_url,
        "GRISTMILL_HEALTH_PORT": "0",
        "MAX_IN_FLIGHT": "1024",
        "GRISTMILL_LEASE_S": "5",
    }
    chance = random.Random(options.seed)
    kills = sorted(chance.random() for _ in range(options.kills))
    async with Batches.from_settings(settings) as batches:
        batch = await create(batches, options.lines)
        fleet = Fleet(environment, {"worker": options.workers, "steward": options.stewards})
        started_s = time.perf_counter()
        try:
            record = await watch(batches, batch.id, fleet, kills)
        finally:
            fleet.stop()
        seconds = time.perf_counter() - started_s
        seen = await count_rows(batches, record)
        ends = (await batches.queue.stats()).counters
        redis_mb = (await batches.queue.redis.info("memory"))["used_memory_peak"] >> 20
    repeated = sum(number > 1 for number in seen.values())
    print(
        f"{options.lines:,} lines: {record.status} in {seconds:,.0f} s, {options.lines / seconds:,.0f} lines/s;"
        f" {len(seen):,} rows, {repeated} doubled, {options.lines - len(seen)} lost;"
        f" {ends['succeeded']:,} requests ended for them\n"
        f"peak memory: steward {fleet.peak_mb['steward']} MB, worker {fleet.peak_mb['worker']} MB, Redis {redis_mb} MB;"
        f" {fleet.num_killed} processes killed"
    )
    if len(seen) != options.lines or repeated:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--stewards", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_server() as url:
        asyncio.run(measure(options, url, folder))


if __name__ == "__main__":
    main()

"""Run a batch of a million lines through OpenAI's client; measure it and check its rows.

    python benchmarks/batch_million.py                    (a million lines)
    python benchmarks/batch_million.py --kills 5          (kill -9 one process of each kind, 5 times)

Separate processes run a Valkey with an append-only file, a gateway, stewards, and workers with the
stub engine. This process uploads the file, watches the batch and counts its rows through OpenAI's
client. The peak memory of a kind is that of its largest process.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import orjson
from measured_processes import GRISTMILL, WORKER, MeasuredProcesses
from openai import APIError, AsyncOpenAI
from openai.types import Batch
from redis.exceptions import RedisError

from gristmill.local.processes import free_port
from gristmill.local.redis_server import server_binary
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue

ENDPOINT: Final = "/v1/chat/completions"
RUNNING = ("validating", "in_progress", "finalizing")


class Fleet(MeasuredProcesses):
    """The processes of all kinds.

    Args:
        folder: Folder of the append-only file and the storage.
        numbers: Number of processes of each kind.
    """

    def __init__(self, folder: Path, numbers: dict[str, int]) -> None:
        redis_port, self.gateway_port = free_port(), free_port()
        self.redis_url = f"redis://127.0.0.1:{redis_port}/0"
        environment = {
            "REDIS_URL": self.redis_url,
            "GRISTMILL_STORAGE_URL": str(folder / "storage"),
            "GRISTMILL_GATEWAY_PORT": str(self.gateway_port),
            "GRISTMILL_HEALTH_PORT": "0",
            "GRISTMILL_LEASE_S": "5",
            "MAX_IN_FLIGHT": "1024",
        }
        commands = {
            "redis": (
                *(str(server_binary()), "--port", str(redis_port), "--bind", "127.0.0.1"),
                *("--dir", str(folder), "--appendonly", "yes", "--save", ""),
            ),
            "gateway": (*GRISTMILL, "gateway"),
            "steward": (*GRISTMILL, "steward"),
            "worker": WORKER,
        }
        super().__init__(commands, numbers, environment)
        self.num_killed = 0

    def kill_one_of_each(self, chance: random.Random) -> None:
        """Kill -9 one process of each kind, and start another."""
        for kind in self._running:
            self.kill_one(kind, chance)
            self.num_killed += 1


def write_input(path: Path, number: int) -> None:
    with path.open("wb") as stream:
        stream.writelines(lines(number))


def lines(number: int) -> Iterator[bytes]:
    for i in range(number):
        messages = [{"role": "user", "content": f"say {i}"}]
        body = {"model": "stub", "messages": messages, "max_tokens": 8}
        fields = {"custom_id": f"c{i}", "method": "POST", "url": ENDPOINT, "body": body}
        yield orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


async def until_ready(client: AsyncOpenAI) -> None:
    while True:
        with suppress(APIError):
            await client.batches.list(limit=1)
            return
        await asyncio.sleep(0.1)


async def watch(client: AsyncOpenAI, batch: Batch, fleet: Fleet, kills: list[float]) -> Batch:
    """Wait until the batch ends, and return it; kill processes at these shares of its progress."""
    chance = random.Random(1)
    while batch.status in RUNNING:
        counts = batch.request_counts
        if kills and counts and counts.total and counts.completed >= kills[0] * counts.total:
            kills.pop(0)
            fleet.kill_one_of_each(chance)
            print(f"  killed one of each kind at {counts.completed:,}", flush=True)
        fleet.measure()
        await asyncio.sleep(0.25)
        with suppress(APIError):  # the gateway, or its Redis, is coming back
            batch = await client.batches.retrieve(batch.id)
    return batch


async def count_rows(client: AsyncOpenAI, batch: Batch) -> Counter[str]:
    """Count each custom_id in both files."""
    seen: Counter[str] = Counter()
    for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
        rest = b""
        async with client.files.with_streaming_response.content(file_id) as content:
            async for chunk in content.iter_bytes(2**20):
                *rows, rest = (rest + chunk).split(b"\n")
                seen.update(row.split(b'"custom_id":"', 1)[1].split(b'"', 1)[0].decode() for row in rows)  # fmt: skip
    return seen


async def num_succeeded(redis_url: str) -> int:
    redis = connect(redis_url)
    try:
        return (await Queue(redis).stats()).counters.get("succeeded", 0)
    except RedisError as error:
        raise SystemExit(f"Redis is gone: {error}") from None
    finally:
        await redis.aclose()


async def measure(options: argparse.Namespace, folder: Path) -> None:
    chance = random.Random(options.seed)
    kills = sorted(chance.random() for _ in range(options.kills))
    source = folder / "in.jsonl"
    write_input(source, options.lines)
    numbers = {"redis": 1, "gateway": 1, "steward": options.stewards, "worker": options.workers}
    fleet = Fleet(folder, numbers)
    url = f"http://127.0.0.1:{fleet.gateway_port}/v1"
    async with AsyncOpenAI(api_key="any", base_url=url, timeout=600) as client:
        try:
            await until_ready(client)
            began_s = time.perf_counter()
            file = await client.files.create(file=source, purpose="batch")
            uploaded_s = time.perf_counter()
            batch = await client.batches.create(
                input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
            )
            batch = await watch(client, batch, fleet, kills)
            ended_s = time.perf_counter()
            seen = await count_rows(client, batch)
            ended = await num_succeeded(fleet.redis_url)
            fleet.measure()
        finally:
            fleet.stop()
    repeated = sum(number > 1 for number in seen.values())
    validated_s = (batch.in_progress_at or 0) - batch.created_at
    peaks = ", ".join(f"{kind} {mb} MB" for kind, mb in fleet.peak_mb.items())
    print(
        f"{options.lines:,} lines: uploaded in {uploaded_s - began_s:,.1f} s, validated in about {validated_s} s, {batch.status}"
        f" after {ended_s - uploaded_s:,.0f} s, {options.lines / (ended_s - uploaded_s):,.0f} lines/s\n"
        f"{len(seen):,} rows, {repeated} doubled, {options.lines - len(seen)} lost; {ended:,} requests ended for them;"
        f" {fleet.num_killed} processes killed\n"
        f"peak memory: {peaks}"
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
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(options, Path(folder)))


if __name__ == "__main__":
    main()

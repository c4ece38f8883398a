"""Hundreds of streams at once while workers are killed and connections are cut: each client gets its whole text once.

`GRISTMILL_FAULT_STREAMS=500` is the full number. The last line that it prints says what happened.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from faults.cell import BINARIES, Cell, open_cell
from gateways import gateway_settings, running_gateway
from streams import TEXT_PATH, Received

NUM_STREAMS = int(os.environ.get("GRISTMILL_FAULT_STREAMS", "40"))
SEED = int(os.environ.get("GRISTMILL_FAULT_SEED", time.time_ns() // 1000 % 10**9))
NUM_WORKERS = 3
NUM_TOKENS = 200
NUM_KILLS = 4
KILL_INTERVAL_S = 0.7
PATIENT: dict[str, Any] = {"lease_s": 4, "beat_s": 1, "socket_timeout_s": 10}
"""Settings of the workers: they reach Redis through this process, which is busy with all clients and the gateway."""

MAX_CUTS = 3
"""Most times that one client hangs up and comes back."""

MAX_REDIS_BYTES = 64 * 2**20 + NUM_STREAMS * 256 * 2**10
"""Most memory of Redis: its own, and what NUM_TOKENS tokens of a few deliveries take at most."""

CALL_AGAIN = ("redis_away", "timeout")
OF_RESULT = 10**9
EventId = tuple[int, int, int]


def event_id(text: str) -> EventId:
    """Return an id to compare; those of events that the result has are the last ones."""
    position, _, place = text.partition(".")
    delivery, _, number = position.partition("-")
    return (
        (OF_RESULT, 0, int(place))
        if position == "result"
        else (int(delivery), int(number), int(place))
    )


def follows(before: EventId, after: EventId) -> bool:
    """Return whether an event is the next one of its delivery, or the first new one of a later delivery."""
    if before[0] != after[0]:
        return before[0] < after[0]
    return after[1:] in ((before[1], before[2] + 1), (before[1] + 1, 1))


class StreamClient:
    """A client that hangs up now and then, and goes on after the last event that it has got."""

    def __init__(self, api: httpx.AsyncClient, number: int, chance: random.Random) -> None:
        self._api = api
        self._key = f"stream-{number}"
        self._cuts = sorted(chance.randrange(1, NUM_TOKENS) for _ in range(chance.randint(0, MAX_CUTS)))  # fmt: skip
        self._prompt = f"plain {number} of many words"
        self.text = self.last_id = ""
        self.ids: list[EventId] = []
        self.num_cuts = 0
        self.error: dict[str, Any] = {}

    @property
    def expected(self) -> str:
        return " ".join(islice(cycle(self._prompt.split()), NUM_TOKENS))

    async def run(self) -> None:
        """Call again and again until the stream has ended; also after a 503, which a busy gateway answers."""
        while not await self._call():
            self.num_cuts += 1
            await asyncio.sleep(0.1)

    async def _call(self) -> bool:
        headers = {"Idempotency-Key": self._key}
        if self.last_id:
            headers["Last-Event-ID"] = self.last_id
        body = {"prompt": self._prompt, "max_tokens": NUM_TOKENS, "stream": True}
        cut_at = self._cuts.pop(0) if self._cuts else 10**6
        async with self._api.stream("POST", TEXT_PATH, json=body, headers=headers) as response:
            if response.status_code != 200:
                error = await _error_of(response)
                self.error = {} if error["code"] in CALL_AGAIN else error
                return bool(self.error)
            stream = await Received(response).read(max(1, cut_at - len(self.ids)))
        self.ids += map(event_id, stream.ids)
        self.last_id = stream.ids[-1] if stream.ids else self.last_id
        self.text += stream.text
        if stream.data and "error" in stream.data[-1]:
            self.error = {} if stream.error["code"] in CALL_AGAIN else stream.error
        return stream.is_done or bool(self.error)

    def check(self) -> None:
        """Check that no event is lost, doubled or out of order."""
        assert all(map(follows, self.ids, self.ids[1:])), self.ids
        if self.error:  # blamed for kills from outside, as docs/guarantees.md says
            assert self.error["code"] == "engine_killed", self.error
            assert self.expected.startswith(self.text)
        else:
            assert self.text == self.expected


async def _error_of(response: httpx.Response) -> dict[str, Any]:
    await response.aread()
    error: dict[str, Any] = response.json()["error"]
    return error


async def kill_workers(cell: Cell) -> None:
    for number in range(NUM_KILLS):
        await asyncio.sleep(KILL_INTERVAL_S)
        cell.workers[number % NUM_WORKERS].signal(signal.SIGKILL)


async def watch_memory(cell: Cell, seen: list[int]) -> None:
    admin: Any = cell.redis.admin
    while True:
        seen.append((await admin.info("memory"))["used_memory"])
        await asyncio.sleep(0.2)


@pytest.mark.timeout(0)
async def test_streams_of_killed_workers_lose_nothing(tmp_path: Path) -> None:
    chance, memory = random.Random(SEED), list[int]()
    async with open_cell(BINARIES[0], tmp_path) as cell:
        for _ in range(NUM_WORKERS):
            await cell.add_worker(**PATIENT)
        settings = gateway_settings(cell.redis.url, cell.queue, tmp_path / "files")
        async with (
            running_gateway(settings) as gateway,
            httpx.AsyncClient(
                base_url=gateway.url, timeout=300, limits=httpx.Limits(max_connections=None)
            ) as api,
        ):
            clients = [StreamClient(api, number, chance) for number in range(NUM_STREAMS)]
            began_s = time.monotonic()
            watching = asyncio.create_task(watch_memory(cell, memory))
            killing = asyncio.create_task(kill_workers(cell))
            async with asyncio.TaskGroup() as group:
                for client in clients:
                    group.create_task(client.run())
            took_s = time.monotonic() - began_s
            await killing
            watching.cancel()
    for client in clients:
        client.check()
    num_failed = sum(bool(client.error) for client in clients)
    assert num_failed <= NUM_STREAMS // 10
    assert max(memory) <= MAX_REDIS_BYTES
    deliveries = Counter(len({each[0] for each in client.ids}) for client in clients)
    told = (
        f"seed {SEED}: {NUM_STREAMS} streams in {took_s:.1f} s, {sum(len(c.ids) for c in clients):,} events,"
        f" {sum(c.num_cuts for c in clients)} cut and resumed, deliveries seen {dict(deliveries)},"
        f" {num_failed} blamed, Redis at most {max(memory) / 2**20:.1f} MiB"
    )
    sys.stdout.write(f"{told}\n")

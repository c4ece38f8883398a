"""Measure what a Sentinel failover loses, and what each protection from the loss costs.

    python benchmarks/replication.py [--kills 5] [--requests 50000] [--repeat 3]

A primary, a replica and three sentinels run on this machine (down-after 1 s).

- Loss: four tasks submit 1 KB requests at full speed until the primary dies. The script then looks
  for each acknowledged id on the new primary. `kill -9` of the process keeps the bytes that it had
  written to its sockets. To lose these too, as with the host, replication runs through a relay. The
  relay delays each byte by some milliseconds and dies with the primary.
- Cost: the same submits run with each protection in turns, on one set of servers with one sentinel.

docs/operations.md shows the tables.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from redis.exceptions import RedisError

from gristmill.local.processes import die_with_parent, free_port
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import announce_redis_waits, retrying
from gristmill.shared.request import Request

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from servers import Replicated, ask, kill, running_sentinels, until

SUBMIT, TASKS, SECONDS_BEFORE = 100, 4, 1.5
BODY = b'{"prompt":"' + b"x" * 1000 + b'","max_tokens":64}'
LINK_UP = ("INFO", "replication"), "master_link_status:up"


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss by one death of the primary.

    Attributes:
        acknowledged: Number of requests whose submit had returned.
        lost: Number of these that the new primary does not know.
        rate: Acknowledged requests per second before the death.
        recovery_s: Seconds from the death to the first write on the new primary.
    """

    acknowledged: int
    lost: int
    rate: float
    recovery_s: float


def some_requests(name: str, first: int, number: int) -> list[Request]:
    return [
        Request(body=BODY, id=f"{name}-{n}", prompt_tokens=250, max_tokens=64)
        for n in range(first, first + number)
    ]


def relay_for(stack: ExitStack, replicated: Replicated, delay_ms: int) -> "subprocess.Popen[bytes]":
    """Make the replica follow through a relay that delays each byte by `delay_ms`."""
    port = free_port()
    command = [
        sys.executable,
        __file__,
        "--relay",
        str(port),
        str(replicated.primary),
        str(delay_ms),
    ]
    process = subprocess.Popen(command, preexec_fn=die_with_parent)  # noqa: PLW1509, S603  # our own
    stack.callback(process.wait)
    stack.callback(process.kill)
    time.sleep(0.5)
    ask(replicated.replicas[0], "REPLICAOF", "127.0.0.1", port)
    until([(replicated.replicas[0], *LINK_UP)])
    return process


async def submit_until_dead(queue: Queue, name: str, acknowledged: list[str]) -> None:
    number = 0
    while True:
        requests = some_requests(name, number, SUBMIT)
        try:
            await queue.submit(requests)
        except (RedisError, OSError):
            return
        acknowledged.extend(request.id for request in requests)
        number += SUBMIT


async def lose(
    replicated: Replicated, relay: "subprocess.Popen[bytes] | None", limits: Limits
) -> Loss:
    """Submit until the primary is killed, then count the acknowledged and lost requests."""
    queue = Queue(connect(replicated.url), "loss", limits)
    acknowledged: list[str] = []
    submitting = [
        asyncio.create_task(submit_until_dead(queue, f"t{n}", acknowledged)) for n in range(TASKS)
    ]
    await asyncio.sleep(SECONDS_BEFORE)
    num_before, died_s = len(acknowledged), time.monotonic()
    if relay:
        relay.kill()
    await asyncio.to_thread(kill, replicated.primary)
    await asyncio.gather(*submitting)
    await retrying(lambda: queue.seal("probe", 1))
    recovery_s = time.monotonic() - died_s
    lost = 0
    for start in range(0, len(acknowledged), 500):
        states = await queue.status(acknowledged[start : start + 500])
        lost += sum(state == "unknown" for state, _ in states)
    await queue.redis.aclose()
    return Loss(len(acknowledged), lost, num_before / SECONDS_BEFORE, recovery_s)


def losses(kills: int, limits: Limits, delay_ms: int) -> list[Loss]:
    found = []
    for _ in range(kills):
        with running_sentinels() as replicated, ExitStack() as stack:
            relay = relay_for(stack, replicated, delay_ms) if delay_ms else None
            found.append(asyncio.run(lose(replicated, relay, limits)))
    return found


async def submits_a_second(url: str, name: str, limits: Limits, number: int, a_call: int) -> float:
    redis = connect(url)
    queue = Queue(redis, name, limits)
    chunks = [some_requests(name, first, a_call) for first in range(0, number, a_call)]
    await queue.stats()
    started_s = time.perf_counter()
    for chunk in chunks:
        await queue.submit(chunk)
    rate = number / (time.perf_counter() - started_s)
    await redis.delete(*[key async for key in redis.scan_iter(f"{queue.keys.prefix}*", 1000)])
    await redis.aclose()
    return rate


def costs(number: int, repeat: int) -> dict[tuple[str, int], list[float]]:
    """Return the submitted requests per second by protection and requests per call."""
    rates: dict[tuple[str, int], list[float]] = {}
    with running_sentinels(num_sentinels=1) as replicated:
        for turn in range(repeat):
            for name, replicas, on_server in (
                ("none", 0, 0), ("min-replicas-to-write 1", 0, 1), ("GRISTMILL_MIN_REPLICAS=1", 1, 0),
            ):  # fmt: skip
                ask(replicated.primary, "CONFIG", "SET", "min-replicas-to-write", on_server)
                for a_call in (500, 1):
                    job = submits_a_second(
                        replicated.url, f"q{turn}", Limits(min_replicas=replicas),
                        number if a_call > 1 else number // 20, a_call,
                    )  # fmt: skip
                    rates.setdefault((name, a_call), []).append(asyncio.run(job))
    return rates


def print_losses(name: str, found: Sequence[Loss]) -> None:
    lost = ", ".join(f"{loss.lost:,}" for loss in found)
    acknowledged = statistics.median(loss.acknowledged for loss in found)
    rate = statistics.median(loss.rate for loss in found)
    recovery = [loss.recovery_s for loss in found]
    print(
        f"| {name} | {acknowledged:,.0f} | {rate:,.0f} | {lost} |"
        f" {min(recovery):.1f} to {max(recovery):.1f} s |",
        flush=True,
    )


def tabulate_losses(kills: int) -> None:
    print("| what dies | acknowledged | submits/s | lost, each death | first write after |")
    print("| --- | --- | --- | --- | --- |")
    for protection, limits in (("", Limits()), (", MIN_REPLICAS=1", Limits(min_replicas=1))):
        print_losses(f"the process{protection}", losses(kills, limits, 0))
        for delay_ms in (1, 20):
            name = f"the host, replica {delay_ms} ms away{protection}"
            print_losses(name, losses(kills, limits, delay_ms))


async def relay(port: int, target: int, delay_ms: int) -> None:
    """Forward bytes between `port` and `target`, each after `delay_ms`."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(65_536):
            loop.call_later(delay_ms / 1000, writer.write, data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pump(reader, to_writer), pump(to_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure failovers and protections from them.")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--relay", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.relay:
        asyncio.run(relay(*options.relay))
        return
    announce_redis_waits("", tell=lambda _: None)  # an outage is part of the measurement
    if options.kills:
        tabulate_losses(options.kills)
    rates = costs(options.requests, options.repeat)
    print("\n| protection | 500 a submit | | 1 a submit | |\n| --- | --- | --- | --- | --- |")
    for name in dict.fromkeys(name for name, _ in rates):
        cells = []
        for a_call in (500, 1):
            rate = statistics.median(rates[name, a_call])
            cells.append(f"{rate:,.0f}/s | {rate / statistics.median(rates['none', a_call]):.2f}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

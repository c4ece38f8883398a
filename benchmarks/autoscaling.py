"""Compare autoscaling on seconds of work with autoscaling on the length of a list, over a day in simulated time.

    PYTHONPATH=tests python benchmarks/autoscaling.py

The queue is true: submits, claims, acks and releases run on a Redis. Cluster (`simulated_cluster.py`), engines and
clock are models. An engine gives each of its requests one token a step; a step takes longer if it has more requests.
Prompts cost nothing. Nothing waits, so the results do not depend on the machine.
"""

import argparse
import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import quantiles

from queues import settlement
from simulated_cluster import Autoscaler, Deployment, Pod

from gristmill.local.redis_server import running_server
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.shared.request import COMPLETIONS, Request

TICK_S = 5.0
HOUR_S = 3600.0
NUM_CARDS = 8
MAX_OUTPUT_TOKENS = 8192
MAX_NUM_SEQS = 64
"""Requests that one engine runs."""

_numbers = count(1)


def step_s(num_running: int) -> float:
    """Seconds of a step: 20 ms alone, 50 ms with 64 requests, as a 32B model on one H100 would take."""
    return 0.020 + 0.030 * num_running / MAX_NUM_SEQS


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of the day: when it comes, what it takes, and whether a batch brings it or a person."""

    at_s: float
    output_tokens: int
    is_of_batch: bool


def office_hours(chance: random.Random, per_s: float, first_h: float, last_h: float) -> list[float]:
    """Moments of requests of people: none at night, most at noon (a half sine), at most `per_s`."""
    length_s, moments, at_s = (last_h - first_h) * HOUR_S, [], 0.0
    while (at_s := at_s + chance.expovariate(per_s)) < length_s:
        if chance.random() < math.sin(math.pi * at_s / length_s):
            moments.append(first_h * HOUR_S + at_s)
    return moments


def a_day(scale: float = 1.0) -> list[Arrival]:
    """Return the requests of a day: 10,000 at 02:00 and at 20:00, people from 07:00 to 18:00."""
    chance = random.Random(11)
    batches = [(hour * HOUR_S, True) for hour in (2, 20) for _ in range(int(10_000 * scale))]
    people = [(at_s, False) for at_s in office_hours(chance, 4 * scale, 7, 18)]
    return [
        Arrival(
            at_s, 1 + min(MAX_OUTPUT_TOKENS - 1, int(chance.lognormvariate(6.4, 1.0))), is_of_batch
        )
        for at_s, is_of_batch in sorted(batches + people)
    ]


@dataclass
class Run:
    """A request in an engine: what it still needs, and when it was claimed."""

    item: Claimed
    left: float
    claimed_at_s: float


@dataclass
class Engine:
    """The engine of one pod, which claims from the true queue and settles there."""

    queue: Queue
    name: str = field(default_factory=lambda: f"pod-{next(_numbers)}")
    running: list[Run] = field(default_factory=list)

    async def claim(self, now_s: float) -> int:
        """Fill the free places; return how many requests came."""
        room = MAX_NUM_SEQS - len(self.running)
        if not room:
            return 0
        claim = await self.queue.claim(self.name, f"{self.name}-{next(_numbers)}", room)
        self.running += [Run(item, int(item.record.body), now_s) for item in claim.claimed]
        return len(claim.claimed)

    async def step(self) -> list[Run]:
        """Run for a tick; settle and return what ended."""
        if not self.running:
            return []
        tokens = TICK_S / step_s(len(self.running))
        for run in self.running:
            run.left -= tokens
        ended = [run for run in self.running if run.left <= 0]
        self.running = [run for run in self.running if run.left > 0]
        if ended:
            await self.queue.ack(self.name, [settlement(run.item) for run in ended])
        return ended

    async def stop(self) -> float:
        """Give back what still runs, as at the end of a drain; return the tokens that this loses."""
        lost = sum(int(run.item.record.body) - run.left for run in self.running)
        if self.running:
            await self.queue.release(self.name, [run.item for run in self.running])
        self.running = []
        await self.queue.deregister(self.name)
        return lost


@dataclass
class Day:
    """The costs of a day, the waits of people's requests for an engine, and the time of the slower batch."""

    pod_hours: float = 0
    waits_s: list[float] = field(default_factory=list)
    batch_s: float = 0
    num_repeated: int = 0
    lost_tokens: float = 0
    most_pods: int = 0
    last_pods: int = 0

    def row(self, name: str) -> str:
        cuts = quantiles(self.waits_s, n=100)
        return (
            f"| {name} | {self.pod_hours:.1f} | {cuts[49]:,.0f} | {cuts[98]:,.0f} | {self.batch_s / 60:.0f} |"
            f" {self.num_repeated:,} | {self.lost_tokens / 1e6:.2f} | {self.most_pods} -> {self.last_pods} |"
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """One row of the table.

    Attributes:
        name: Its name.
        metric: `work` or `list`.
        target: Value of the metric that one pod should have.
        drain_s: Seconds that a pod has to finish its requests.
        has_cost: True if pods write their deletion cost.
    """

    name: str
    metric: str
    target: float
    drain_s: float = 600
    has_cost: bool = False


async def metric_of(policy: Policy, queue: Queue, tokens_per_s: float) -> float:
    """Return what the autoscaler sees: seconds of work of one pod, or the length of the list."""
    if policy.metric == "list":
        length: int = await queue.redis.llen(queue.keys.waiting("normal", "default"))
        return length
    counters = (await queue.stats()).counters
    return (counters.get("queued_tokens", 0) + counters.get("in_flight_tokens", 0)) / tokens_per_s


class Simulation:
    """One day under one policy."""

    def __init__(self, policy: Policy, queue: Queue, day: Sequence[Arrival]) -> None:
        self._policy, self._queue, self._day = policy, queue, day
        self._deployment = Deployment(NUM_CARDS, policy.drain_s, has_cost=policy.has_cost)
        self._scaler = Autoscaler(policy.target, NUM_CARDS)
        self._engines: dict[Pod, Engine] = {}
        self._num_waiting = self._num_open = 0
        self._next = 0
        self._chance = random.Random(5)
        self._result = Day()
        limits = (limit_of(each.output_tokens) for each in day)
        share = sum(each.output_tokens for each in day) / sum(limits)
        full = MAX_NUM_SEQS / step_s(MAX_NUM_SEQS)
        self._tokens_per_s = full / share  # by the estimates of the headers, as the queue counts

    async def run(self) -> Day:
        """Run until the day is over, all requests have ended and the last pod is gone, or 8 hours more."""
        now_s = 0.0
        while now_s < 24 * HOUR_S or (self._num_open and now_s < 32 * HOUR_S):
            await self._submit(now_s)
            await self._scale(now_s)
            for pod in self._deployment.advance(now_s):
                self._result.lost_tokens += await self._end(pod)
            ready = self._deployment.ready
            self._chance.shuffle(ready)  # any worker may ask first
            for pod in ready:
                await self._work(pod, now_s)
            now_s += TICK_S
        self._result.pod_hours = self._deployment.pod_seconds(now_s) / HOUR_S
        self._result.last_pods = len(self._deployment.holding_cards)
        return self._result

    async def _submit(self, now_s: float) -> None:
        first = self._next
        while self._next < len(self._day) and self._day[self._next].at_s <= now_s:
            self._next += 1
        for start in range(first, self._next, 500):
            requests = [self._request(n) for n in range(start, min(start + 500, self._next))]
            await self._queue.submit(requests)
        self._num_waiting += self._next - first
        self._num_open += self._next - first

    def _request(self, number: int) -> Request:
        arrival = self._day[number]
        return Request(
            body=b"%d" % arrival.output_tokens, endpoint=COMPLETIONS, id=str(number),
            max_tokens=limit_of(arrival.output_tokens),
        )  # fmt: skip

    async def _scale(self, now_s: float) -> None:
        if self._scaler.is_due(now_s):
            value = await metric_of(self._policy, self._queue, self._tokens_per_s)
            self._deployment.scale(self._scaler.replicas(value, now_s), now_s)

    async def _work(self, pod: Pod, now_s: float) -> None:
        if pod not in self._engines:
            self._engines[pod] = Engine(self._queue)
            await self._queue.register(self._engines[pod].name, {})
        engine = self._engines[pod]
        for run in await engine.step():
            self._num_open -= 1
            arrival = self._day[int(run.item.id)]
            if arrival.is_of_batch:
                self._result.batch_s = max(self._result.batch_s, now_s - arrival.at_s)
            else:
                self._result.waits_s.append(run.claimed_at_s - arrival.at_s)
        if not pod.is_stopping and self._num_waiting:
            self._num_waiting -= await engine.claim(now_s)
        pod.num_running = len(engine.running)
        self._result.most_pods = max(self._result.most_pods, len(self._deployment.ready))

    async def _end(self, pod: Pod) -> float:
        engine = self._engines.pop(pod, None)
        if engine is None:
            return 0
        self._result.num_repeated += len(engine.running)
        self._num_waiting += len(engine.running)
        return await engine.stop()


def limit_of(output_tokens: int) -> int:
    """Return the `max_tokens` that a client sends, which is more than the answer needs."""
    return next(limit for limit in (1024, 4096, MAX_OUTPUT_TOKENS) if limit >= output_tokens)


POLICIES = [
    Policy("seconds of work, 60 s", "work", 60, has_cost=True),
    Policy("seconds of work, 90 s", "work", 90, has_cost=True),
    Policy("seconds of work, 180 s", "work", 180, has_cost=True),
    Policy("list length, 116 (90 s)", "list", 116),
    Policy("list length, 5 (KEDA's default)", "list", 5),
    Policy("seconds of work, 90 s; drain 60 s", "work", 90, 60, has_cost=True),
    Policy("the same without deletion cost", "work", 90, 60),
    Policy("list length, 116; drain 60 s", "list", 116, 60),
]


async def simulate(policy: Policy, url: str, day: Sequence[Arrival]) -> Day:
    """Run a day on a new queue; leases outlive the run, because its clock is not Redis's."""
    redis = connect(url)
    try:
        await redis.flushdb()
        queue = Queue(redis, f"day-{next(_numbers)}", Limits(lease_ms=24 * 3_600_000))
        return await Simulation(policy, queue, day).run()
    finally:
        await redis.aclose()


async def main() -> None:
    parser = argparse.ArgumentParser(description="Autoscaling over a simulated day.")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the day's requests")
    day = a_day(parser.parse_args().scale)
    tokens = sum(each.output_tokens for each in day)
    needed_h = tokens * step_s(MAX_NUM_SEQS) / MAX_NUM_SEQS / HOUR_S
    longest_s = MAX_OUTPUT_TOKENS * step_s(MAX_NUM_SEQS)
    print(f"{len(day):,} requests, {tokens / 1e6:.0f} million tokens; {needed_h:.1f} GPU-hours in full engines; the longest request runs {longest_s:.0f} s\n")  # fmt: skip
    print(
        "| policy | GPU-hours | people wait p50 s | p99 s | batch min | computed twice | Mtokens lost | pods |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with running_server() as url:
        for policy in POLICIES:
            print((await simulate(policy, url, day)).row(policy.name), flush=True)


if __name__ == "__main__":
    asyncio.run(main())

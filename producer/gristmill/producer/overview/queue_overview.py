"""Read the work of a queue and its workers. The gateway's page, `gristmill top` and `queue stats` call it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gristmill.shared import brakes, worker_load
from gristmill.shared.backlog import Backlog
from gristmill.shared.brakes import Brake
from gristmill.shared.chunking import chunks
from gristmill.shared.fleet import Served
from gristmill.shared.queue import Queue
from gristmill.shared.snapshot import read_together
from gristmill.shared.worker_facts import number_of
from gristmill.shared.worker_load import WorkerLoad

MAX_WORKERS = 2_000
"""Most workers of a queue that one call of `read_queue` reads; `QueueView.backlog` counts all."""

WORKERS_A_CALL = 100
"""Workers that one call reads; this keeps each script near 1 ms."""

_FIELDS = (
    "models", "endpoints", "max_model_len", "max_in_flight", "device", "num_devices", "host", "pid", "version",
    "vllm_version", "transport", "registered_ms", worker_load.FIELD, brakes.FIELD,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker of a queue.

    Attributes:
        name: Name of the incarnation.
        lease_ms: Milliseconds until its lease ends; 0 or less for a worker that is dead and not reaped yet.
        num_in_flight: Requests of this queue that it holds.
        max_in_flight: Most requests that it holds; 0 if it does not say.
        served: Models and endpoints.
        device: Device of its engine, such as a GPU's name; "" if it does not say. So are the next texts.
        num_devices: Devices of its engine.
        host: Its machine.
        pid: Its process; 0 if it does not say.
        version: Version of Gristmill.
        vllm_version: Version of vLLM.
        transport: in_process, remote or stub.
        registered_ms: Redis time of its start; 0 if it does not say.
        load: Load of its engine, from all queues of the worker; None before its second heartbeat.
        brake: Why it is braked; None if it is not.
    """

    name: str
    lease_ms: int
    num_in_flight: int
    max_in_flight: int
    served: Served
    device: str
    num_devices: int
    host: str
    pid: int
    version: str
    vllm_version: str
    transport: str
    registered_ms: int
    load: WorkerLoad | None
    brake: Brake | None

    @property
    def is_live(self) -> bool:
        """True if its lease has not ended."""
        return self.lease_ms > 0

    @property
    def state(self) -> str:
        """One word or a few: dead, braked, what it waits for, running or idle."""
        if not self.is_live:
            return "dead"
        if self.brake:
            return "braked"
        if self.load and self.load.waits_for:
            return f"waits for {self.load.waits_for}"
        return "running" if self.num_in_flight else "idle"


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue with its workers.

    Attributes:
        backlog: The work of the queue, and its `stats`.
        workers: Its workers by name, at most `MAX_WORKERS`. Dead ones are among them until they are reaped.
    """

    backlog: Backlog
    workers: Sequence[WorkerView]

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self.backlog.queue

    @property
    def num_live(self) -> int:
        """Workers whose lease has not ended."""
        return self.backlog.num_workers

    @property
    def is_braked(self) -> bool:
        """True if workers live and all of them are braked."""
        leases = self.backlog.stats.workers
        return brakes.all_braked(leases, {w.name: w.brake for w in self.workers if w.brake})

    @property
    def work_s(self) -> float | None:
        """Seconds of work at the latest pace; None if no worker has settled a request yet, or if all are braked."""
        is_known = self.backlog.is_pace_known and not self.is_braked
        return self.backlog.work_s if is_known or not self.backlog.work_s else None

    @property
    def output_tokens_per_s(self) -> float | None:
        """Tokens per second that the engines of the live workers generate; None if no engine says."""
        return _sum(self.workers, "output_tokens_per_s")

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """Prompt tokens per second that those engines prefill; None if no engine says."""
        return _sum(self.workers, "prompt_tokens_per_s")


async def read_queue(queue: Queue) -> QueueView:
    """Return a queue and its workers, with one call of Redis and one more for each 100 workers.

    Raises:
        WrongFormat: Another version of Gristmill wrote the queue.
        RedisError, OSError: Redis does not answer, or refuses.
    """
    stats = await queue.stats()
    return QueueView(Backlog.of(queue.keys.queue, stats), await _workers(queue, stats.workers))


async def _workers(queue: Queue, leases: Mapping[str, int]) -> list[WorkerView]:
    names = list(islice(sorted(leases), MAX_WORKERS))
    return [
        _worker(name, leases[name], facts, num_in_flight)
        for some in chunks(names, WORKERS_A_CALL)
        for name, facts, num_in_flight in await _read(queue, some)
    ]


async def _read(queue: Queue, names: Sequence[str]) -> list[tuple[str, dict[str, bytes], int]]:
    """Return for each worker its facts, as far as it gave any, and how many requests it holds."""
    keys = queue.keys
    replies = await read_together(
        queue,
        *(("HMGET", keys.worker(name), *_FIELDS) for name in names),
        *(("HLEN", keys.in_flight(name)) for name in names),
    )
    facts, held = replies[: len(names)], replies[len(names) :]
    known = [
        {field: value for field, value in zip(_FIELDS, values, strict=True) if value}
        for values in facts
    ]
    return list(zip(names, known, held, strict=True))


def _worker(name: str, lease_ms: int, facts: Mapping[str, bytes], num_in_flight: int) -> WorkerView:
    def text(field: str) -> str:
        return facts.get(field, b"").decode(errors="replace")

    def number(field: str) -> int:
        return number_of(facts.get(field))

    note = facts.get(brakes.FIELD)
    return WorkerView(
        name=name,
        lease_ms=lease_ms,
        num_in_flight=num_in_flight,
        max_in_flight=number("max_in_flight"),
        served=Served.parse(*(facts.get(field) for field in _FIELDS[:3])),
        device=text("device"),
        num_devices=number("num_devices"),
        host=text("host"),
        pid=number("pid"),
        version=text("version"),
        vllm_version=text("vllm_version"),
        transport=text("transport"),
        registered_ms=number("registered_ms"),
        load=WorkerLoad.parse(facts.get(worker_load.FIELD)),
        brake=Brake.parse(note) if note else None,
    )


def _sum(workers: Sequence[WorkerView], rate: str) -> float | None:
    rates: list[Any] = [getattr(each.load, rate) for each in workers if each.is_live and each.load]
    known = [each for each in rates if each is not None]
    return sum(known) if known else None

"""Random schedules: who works, what is asked, and what goes wrong when. Pure; a seed is a schedule."""

import random
from dataclasses import dataclass

from faults.processes import (
    ANSWERS_TOO_MUCH,
    FAILS_ONCE,
    HOLDS_INTERPRETER,
    IS_WRONG,
    KILLS_ENGINE,
    KILLS_WORKER,
    UNSERVED_AT_FIRST,
    Prompt,
)
from faults.proxy import Phase

LEASE_S = 0.6

PROCESS_FAULTS = ("kill -9", "SIGTERM", "SIGSTOP past the lease")
WIRE_FAULTS = ("connection cut", "reply lost", "half-open connection", "slow connection")
BYTE_BOMBS, WRONG_TYPES, LOST_LEASES = (
    "byte bombs",
    "keys of a wrong type",
    "lease lost again and again",
)
REDIS_FAULTS = (
    "Redis restart", "Redis stalls", "CLIENT KILL", "SCRIPT FLUSH", "maxmemory", "MISCONF", "READONLY",
    BYTE_BOMBS, WRONG_TYPES, LOST_LEASES,
)  # fmt: skip
"""One at a time; the last three are not the server's: somebody writes to it."""
WRONG_CLOCK, POISON, DEAF, FAULTY_SERVER, STALLED_UPLOADS = (
    "wrong host clock",
    "poisonous requests",
    "interpreter held past the lease",
    "server behind VLLM_URL fails for some",
    "stalled uploads",
)

LARGE = "large"
"""First word of a prompt with a large body; it is a plain one otherwise."""

NUM_WORDS = 8_000
"""Words of a large body, which has 40 kB."""

WORKER_POINTS: tuple[tuple[str, Phase], ...] = (
    ("register", "answered"), ("claim", "asked"), ("claim", "answered"), ("ack", "asked"), ("ack", "answered"),
    ("nack", "asked"), ("nack", "answered"), ("release", "asked"), ("release", "answered"), ("deregister", "asked"),
    ("deregister", "answered"), ("beat", "answered"), ("reap", "answered"), ("expire", "answered"), ("crash", "answered"),
)  # fmt: skip
PRODUCER_POINTS: tuple[tuple[str, Phase], ...] = (
    ("submit", "asked"), ("submit", "answered"), ("mget", "asked"), ("blpop", "answered"),
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A moment in a conversation with Redis; see `Trap`."""

    verb: str
    phase: Phase
    nth: int


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: One of the names above.
        at_s: When, from the start; of a point, when the trap is laid.
        duration_s: How long it lasts, where it lasts.
        target: Which worker; -1 is the producer.
        point: Where in the target's conversation, instead of at a moment.
    """

    kind: str
    at_s: float
    duration_s: float
    target: int
    point: Point | None


@dataclass(frozen=True)
class Schedule:
    """One run.

    Attributes:
        seed: What it was made from.
        max_in_flight: Of each worker.
        refill: Free places that a full worker waits for; None for its default.
        clock_offsets_s: Of each worker's host.
        prompts: What the producer submits, by id.
        faults: What goes wrong.
        has_server: Whether the engine is a server behind `VLLM_URL`, which fails for some.
        has_gateway: Whether uploads stall at a gateway meanwhile.
    """

    seed: int
    max_in_flight: int
    refill: int | None
    clock_offsets_s: tuple[float, ...]
    prompts: dict[str, Prompt]
    faults: tuple[Fault, ...]
    has_server: bool
    has_gateway: bool

    @property
    def kinds(self) -> set[str]:
        """What goes wrong in it, by name."""
        kinds = {fault.kind for fault in self.faults}
        if any(self.clock_offsets_s):
            kinds.add(WRONG_CLOCK)
        prompts = {prompt.kind for prompt in self.prompts.values()}
        if prompts & {KILLS_ENGINE, KILLS_WORKER}:
            kinds.add(POISON)
        if HOLDS_INTERPRETER in prompts:
            kinds.add(DEAF)
        if self.has_server:
            kinds.add(FAULTY_SERVER)
        if self.has_gateway:
            kinds.add(STALLED_UPLOADS)
        return kinds


def schedule_of(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    chance = random.Random(seed)
    num_workers = chance.randint(1, 3)
    is_wrong = chance.random() < 0.2
    offsets = tuple(chance.uniform(-7200, 7200) if is_wrong else 0.0 for _ in range(num_workers))
    number = chance.randint(10, 60)
    has_server = chance.random() < 0.1
    prompts = {f"r{i}": _prompt(chance, i) for i in range(number)}
    faults = _faults(chance, num_workers)
    for place, kind in _special_kinds(chance, number, faults, has_server=has_server).items():
        words = " word" * NUM_WORDS if kind == LARGE else ""
        prompts[f"r{place}"] = Prompt(f"{kind} {place}{words}", 20)
    refill, max_in_flight = chance.choice((None, 4)), chance.choice((2, 8, 32))
    has_gateway = chance.random() < 0.05
    return Schedule(seed, max_in_flight, refill, offsets, prompts, faults, has_server, has_gateway)


def _special_kinds(
    chance: random.Random, number: int, faults: tuple[Fault, ...], *, has_server: bool
) -> dict[int, str]:
    """Return the kinds of the few requests that a schedule is about, by their places."""
    kinds: list[str] = []
    if has_server:  # nobody dies of a request, as the engine is in no process of a worker
        kinds = [UNSERVED_AT_FIRST] * (number // 3)
    else:
        num_culprits = chance.choice((0, 0, 0, 1, 2))
        kinds = chance.choices((KILLS_ENGINE, KILLS_WORKER), k=num_culprits)
    if any(fault.kind == BYTE_BOMBS for fault in faults):
        kinds += [LARGE, ANSWERS_TOO_MUCH] * 2
    return dict(zip(chance.sample(range(number), min(number, len(kinds))), kinds, strict=False))


def _prompt(chance: random.Random, number: int) -> Prompt:
    kinds = ("plain", FAILS_ONCE, IS_WRONG, HOLDS_INTERPRETER)
    kind = chance.choices(kinds, weights=(900, 50, 50, 2))[0]
    fields = {}
    if chance.random() < 0.1:
        fields["delay_s"] = round(chance.random(), 2)
    if chance.random() < 0.1:
        fields["deadline_s"] = 600.0
    return Prompt(f"{kind} {number}", chance.randint(1, 30), fields)


def _faults(chance: random.Random, num_workers: int) -> tuple[Fault, ...]:
    faults = [_fault(chance, num_workers) for _ in range(chance.randint(1, 4))]
    losses = [fault for fault in faults if fault.kind == LOST_LEASES]
    return tuple(fault for fault in faults if fault not in losses[1:])  # each doubles a pause


def _fault(chance: random.Random, num_workers: int) -> Fault:
    target = chance.randrange(-1, num_workers)
    kinds = (*PROCESS_FAULTS, *WIRE_FAULTS, *REDIS_FAULTS)
    weights = (6, 3, 3, 2, 4, 1, 1, 2, 2, 2, 1, 1, 1, 1, 2, 2, 2)
    kind = chance.choices(kinds, weights)[0]
    if target < 0 and kind == "SIGTERM":
        kind = "kill -9"  # a producer has no drain
    if kind == LOST_LEASES:
        target = max(target, 0)  # nor a lease
    point = None
    if kind == "reply lost" or (kind not in REDIS_FAULTS and chance.random() < 0.6):
        verb, phase = chance.choice(PRODUCER_POINTS if target < 0 else WORKER_POINTS)
        is_lost = kind == "reply lost"
        point = Point(verb, "answered" if is_lost else phase, chance.choice((1, 1, 2, 5)))
    duration_s = chance.uniform(0.05, 0.5) if kind != "SIGSTOP past the lease" else LEASE_S * 2
    return Fault(kind, chance.uniform(0, 0.8), duration_s, target, point)

"""One view of a queue, as `Queue.stats` returns it, and what it says in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from gristmill.shared.chunking import pairs
from gristmill.shared.keys import Keys
from gristmill.shared.pauses import WHOLE_QUEUE, Pause


@dataclass(frozen=True, slots=True)
class Stats:
    """One consistent view of a queue.

    Attributes:
        now_ms: Redis time.
        counters: Counters of the queue. `queued`, `in_flight`, `queued_tokens`, `in_flight_tokens`
            and `bytes` are current; the others only grow. Tokens are the requests' estimates.
        depth_by_lane: Entries of each lane, tombstones included.
        num_delayed: Requests that wait for a retry or a start time; part of `queued`.
        num_inbox: Elements that no worker has taken yet; not part of `queued`.
        num_dead: Dead letters.
        used_memory: Bytes that the server uses; 0 if this Redis user may not call INFO.
        max_memory: The server's `maxmemory` in bytes; 0 for no limit, or if this user may not call
            INFO.
        scheduling: Order in which claims take waiting requests.
        tokens_per_s: Estimated tokens that workers settle in a second of work, lately; None if
            none was settled. Time without a request in flight does not count.
        pauses: Scope -> its pause; `queue`, or `batch:` and the name of a batch.
        num_parked: Reason -> requests that no claim, or not every worker, may take; part of
            `queued`. A reason is `batch:` and a paused batch, or `facts:` and the names of facts
            that a worker must understand.
        workers: Worker -> ms until its lease ends.
        wrong_types: Name of a key -> the type that it had, if it was moved away because that type was wrong.
        producers: Producer that is still submitting -> ms until its lease ends.
        num_admitting: Workers with inbox elements that are no requests yet; not part of `num_inbox`.
        silent_ms: Time since the last heartbeat of any worker; 0 before the first.
        grace_ms: Time left of the grace after a silence of all workers, in which no lease counts as ended.
        deadlines: Rank and ms of Redis' clock of at most 16 deadlines, from the earliest (rank 1) to the latest.
        num_braked: Workers whose engine fails everything, those with an ended lease included.
        oldest_ms: Lane -> when the request that waits there longest was submitted. It lacks a lane that is empty or
            is not served first come first served.
    """

    now_ms: int
    counters: Mapping[str, int]
    depth_by_lane: Mapping[str, int]
    num_delayed: int
    num_inbox: int
    num_dead: int
    used_memory: int
    max_memory: int
    scheduling: str
    tokens_per_s: float | None
    pauses: Mapping[str, Pause]
    num_parked: Mapping[str, int]
    workers: Mapping[str, int]
    wrong_types: Mapping[str, str] = field(default_factory=dict)
    producers: Mapping[str, int] = field(default_factory=dict)
    num_admitting: int = 0
    silent_ms: int = 0
    grace_ms: int = 0
    deadlines: Sequence[tuple[int, int]] = ()
    num_braked: int = 0
    oldest_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """True if no request waits or runs, delayed and paused ones included, and no producer is submitting."""
        counters = self.counters
        has_requests = counters.get("queued", 0) or counters.get("in_flight", 0)
        has_elements = self.num_inbox or self.num_admitting
        return not (has_requests or has_elements or num_live(self.producers))

    @property
    def num_paused(self) -> int:
        """Waiting requests that a pause keeps from all workers; part of `queued`.

        Claims find the requests of a paused batch one after another, so it counts only those found so far.
        """
        if WHOLE_QUEUE in self.pauses:
            return self.counters.get("queued", 0)
        return sum(number for why, number in self.num_parked.items() if why in self.pauses)

    @classmethod
    def parse(cls, reply: Sequence[Any]) -> Self:
        """Read what `lua/stats.lua` returns."""
        now_ms, counters, lanes, workers = reply[:4]
        num_delayed, num_inbox, num_dead, used_memory, max_memory, scheduling = reply[4:10]
        pace, pauses, parked, wrong_types, producers, num_admitting, times = reply[10:17]
        deadlines, num_braked, oldest = reply[17:20]
        last_beat_ms, grace_until_ms = (int(value or 0) for value in times)
        return cls(
            now_ms=now_ms,
            counters={k: int(v) for k, v in pairs(counters)},
            depth_by_lane={k: int(v) for k, v in pairs(lanes)},
            num_delayed=num_delayed,
            num_inbox=num_inbox,
            num_dead=num_dead,
            used_memory=used_memory,
            max_memory=max_memory,
            scheduling=scheduling.decode(),
            tokens_per_s=_tokens_per_s(*(int(value or 0) for value in pace)),
            pauses={scope: Pause.parse(note) for scope, note in pairs(pauses)},
            num_parked=dict(pairs(parked)),
            workers={k: int(float(v)) - now_ms for k, v in pairs(workers)},
            wrong_types={name: kind.decode() for name, kind in pairs(wrong_types)},
            producers={k: int(float(v)) - now_ms for k, v in pairs(producers)},
            num_admitting=num_admitting,
            silent_ms=now_ms - last_beat_ms if last_beat_ms else 0,
            grace_ms=max(0, grace_until_ms - now_ms),
            deadlines=tuple(zip(deadlines[::2], deadlines[1::2], strict=True)),
            num_braked=num_braked,
            oldest_ms=dict(pairs(oldest)),
        )


def num_live(leases: Mapping[str, int]) -> int:
    """Return how many leases have not ended.

    Args:
        leases: Worker or producer -> ms until its lease ends, as in `Stats`.
    """
    return sum(left_ms > 0 for left_ms in leases.values())


def _tokens_per_s(tokens: int, busy_ms: int) -> float | None:
    return tokens / busy_ms * 1000 if tokens and busy_ms else None


def moved_in_words(keys: Keys, wrong_types: Mapping[str, str]) -> str:
    """Return what happened to keys of a wrong type and what to do; an empty text without such keys.

    Args:
        keys: The keys of the queue.
        wrong_types: Name of a key -> the type that it had; see `Stats`.
    """
    return "; ".join(
        f"{keys.of_kind(name, '')} was a {kind}, a wrong type, and is now {keys.wrong_type(name)}: find out who writes to"
        " this queue's keys (docs/operations.md, Rights), then delete it"
        for name, kind in sorted(wrong_types.items())
    )

"""Check a queue against its invariants: every request in one place, every counter true.

`gristmill queue audit` and the tests call it. It never writes, so it may run beside producers and
workers. What it walks over moves meanwhile, hence two rules:

- A key or id that looks wrong during the walk is looked at a second time, all of its places in one
  script. Only what is still wrong in that one instant is reported.
- Counters of the walk are compared only if `stats` is the same before and after it; otherwise the
  walk is repeated, at most three times. On a queue that never rests `queued` and `bytes` stay
  unchecked. `in_flight` and the sum of all fates are read in one instant, always.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from gristmill.shared.keys import LANES, ORDERED
from gristmill.shared.queue import Queue
from gristmill.shared.walk import Place, Walk, at_once, integers, look_at, walk_over

MAX_WALKS = 3
TERMINAL = ("succeeded", "failed", "cancelled", "expired")
OF_WORKERS = ("inflight", "inbox", "abort", "lastclaim")
"""Keys that `reap` and `bye` remove with their worker."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that breaks an invariant.

    Attributes:
        kind: lost, two_places, two_records, no_record, owner_mismatch, leftover, unserved_lane,
            no_lease, dead_mismatch, counter_mismatch or second_entry. The last is harmless: an id
            that was submitted again may leave an old entry in a lane, which claim skips.
        subject: The id, key or counter.
        detail: What was seen.
    """

    kind: str
    subject: str
    detail: str

    @property
    def is_harmless(self) -> bool:
        """Whether the queue goes on as if it were not there."""
        return self.kind == "second_entry"


async def audit(queue: Queue) -> list[Finding]:
    """Return what breaks an invariant, nothing if all is well.

    Args:
        queue: Which queue; it may be in use.
    """
    walk = await walk_over(queue)
    for _ in range(MAX_WALKS - 1):
        if walk.is_at_rest:
            break
        walk = await walk_over(queue)
    suspicious = [name for name, place in walk.places.items() if any(_faults(name, place))]
    findings = [
        *[finding async for finding in _second_look(queue, walk, suspicious)],
        *[finding async for finding in _unserved_lanes(queue, walk)],
        *[finding async for finding in _keys_without_lease(queue, walk)],
        *await _dead_findings(queue),
        *await _counter_findings(queue, walk),
    ]
    return sorted(findings, key=lambda finding: (finding.kind, finding.subject))


def _faults(name: str, place: Place) -> Iterable[Finding]:
    """Judge where an id was seen; pure, so that both looks judge alike."""
    if place.has_request:
        yield from _request_faults(name, place)
    else:
        yield from _absence_faults(name, place)
    if place.holders != ([] if place.owner is None else [place.owner]):
        held_by = ", ".join(place.holders) or "nobody"
        yield Finding("owner_mismatch", name, f"owner says {place.owner}, held by {held_by}")


def _request_faults(name: str, place: Place) -> Iterable[Finding]:
    if place.has_result:
        yield Finding("two_records", name, "it has a request and a result")
    num_places = (place.num_entries > 0) + place.is_delayed + bool(place.holders)
    if num_places == 0:
        yield Finding("lost", name, "its request is neither pending, nor delayed, nor in flight")
    if place.is_delayed and place.holders:
        yield Finding("two_places", name, f"delayed, and in flight at {', '.join(place.holders)}")
    elif place.num_entries > 1 or num_places > 1:
        yield Finding("second_entry", name, f"{place.num_entries} entries in {num_places} places")


def _absence_faults(name: str, place: Place) -> Iterable[Finding]:
    """Judge an id without a request; its entries in a lane are tombstones, which claim clears."""
    if place.holders:
        detail = f"in flight at {', '.join(place.holders)} without a request"
        yield Finding("no_record", name, detail)
    if place.is_delayed or place.notes:
        keys = [*(["delayed"] if place.is_delayed else []), *place.notes]
        yield Finding("leftover", name, f"no request, but an entry in {', '.join(keys)}")


async def _second_look(queue: Queue, walk: Walk, names: Sequence[str]) -> AsyncIterator[Finding]:
    for name in names:
        for finding in _faults(name, await look_at(queue, name, walk.keys.get("inflight", []))):
            yield finding


async def _unserved_lanes(queue: Queue, walk: Walk) -> AsyncIterator[Finding]:
    """Report lists and sets that no claim would look into."""
    for kind, command in (("pending", "LLEN"), *((kind, "ZCARD") for kind in ORDERED)):
        for name in walk.keys.get(kind, ()):
            lane, _, flow = name.partition(":")
            depth, vtime = await at_once(
                queue,
                (command, f"{queue.keys.prefix}{kind}:{name}"),
                ("ZSCORE", f"{queue.keys.prefix}ring:{lane}", flow),
            )
            if depth and (vtime is None or lane not in LANES):
                detail = f"{depth} entries that no claim finds"
                yield Finding("unserved_lane", f"{kind}:{name}", detail)


async def _keys_without_lease(queue: Queue, walk: Walk) -> AsyncIterator[Finding]:
    """Report what a worker left that is neither alive nor still to be reaped."""
    left = [(kind, worker) for kind in OF_WORKERS for worker in walk.keys.get(kind, ()) if worker]
    for kind, worker in left:
        is_there, lease = await at_once(
            queue,
            ("EXISTS", f"{queue.keys.prefix}{kind}:{worker}"),
            ("ZSCORE", queue.keys.workers, worker),
        )
        if is_there and lease is None:
            yield Finding("no_lease", f"{kind}:{worker}", f"worker {worker} holds no lease")


async def _dead_findings(queue: Queue) -> list[Finding]:
    keys = queue.keys
    dead, deadinfo = await at_once(queue, ("ZRANGE", keys.dead, 0, -1), ("HKEYS", keys.deadinfo))
    return [
        Finding("dead_mismatch", name.decode(), "it is in only one of dead and deadinfo")
        for name in set(dead) ^ set(deadinfo)
    ]


async def _counter_findings(queue: Queue, walk: Walk) -> list[Finding]:
    compared = await _counted_at_once(queue)
    if walk.is_at_rest:
        compared |= _counted_by_walk(walk)
    return [
        Finding("counter_mismatch", name, f"the counter says {counter}, there are {seen}")
        for name, (counter, seen) in compared.items()
        if counter != seen
    ]


async def _counted_at_once(queue: Queue) -> dict[str, tuple[int, int]]:
    keys = queue.keys
    fields, num_owned, loads = await at_once(
        queue, ("HGETALL", keys.stats), ("HLEN", keys.owner), ("HGETALL", keys.tenant_load)
    )
    stats = Counter(integers(fields))
    load = Counter[str]()
    for field, amount in integers(loads).items():
        load[field.rpartition("|")[2]] += amount
    fates = stats["queued"] + stats["in_flight"] + sum(stats[status] for status in TERMINAL)
    return {
        "in_flight, by owner": (stats["in_flight"], num_owned),
        "submitted": (stats["submitted"], fates),
        "requests of all tenants": (load["requests"], stats["queued"] + stats["in_flight"]),
        "bytes of all tenants": (load["bytes"], stats["bytes"]),
    }


def _counted_by_walk(walk: Walk) -> dict[str, tuple[int, int]]:
    stats, places = Counter(walk.stats_after), walk.places.values()
    num_terminal = sum(stats[status] for status in TERMINAL)  # some results went with their TTL
    num_results = sum(place.has_result for place in places)
    num_waiting = sum(place.has_request and not place.holders for place in places)
    return {
        "in_flight": (stats["in_flight"], sum(len(place.holders) for place in places)),
        "queued": (stats["queued"], num_waiting),
        "bytes": (stats["bytes"], walk.num_bytes),
        "terminal": (num_terminal, max(num_terminal, num_results)),
    }

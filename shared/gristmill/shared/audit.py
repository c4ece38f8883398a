"""Check a queue against its invariants: every request in one place, every counter true.

`gristmill queue audit` and the tests call it. It never writes, so producers and workers may run at
the same time. They move requests while it takes its snapshot, so it follows two rules:

- It reads a second time what looks wrong in the snapshot: all places of an id in one script. It reports only what is
  still wrong in that one instant.
- It compares the snapshot with the counters only if `stats` is the same before and after. Otherwise it takes another
  snapshot, at most three. On a queue that never rests, `queued` and `bytes` stay unchecked. `in_flight` and the sum of
  all ends are always read in one instant.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from gristmill.shared.keys import LANES, ORDERED_KINDS, PENDING
from gristmill.shared.queue import Queue
from gristmill.shared.queue_stats import moved_in_words
from gristmill.shared.snapshot import (
    Place,
    Snapshot,
    integers,
    read_place,
    read_together,
    take_snapshot,
)

MAX_SNAPSHOTS = 3
"""Most snapshots that one audit takes to find a moment in which nothing moves."""

TERMINAL = ("succeeded", "failed", "cancelled", "expired")
OF_WORKERS = ("in_flight", "admitting", "abort", "last_claim")
"""Kinds of keys that `reap` and `deregister` remove with their worker."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that breaks an invariant.

    Attributes:
        kind: wrong_type, lost, two_places, two_records, no_record, owner_mismatch, leftover, unserved_lane,
            no_lease, dead_mismatch, counter_mismatch or second_entry. The last is harmless: an id
            that was submitted again may leave an old entry in a lane, which claim skips.
        subject: The id, key or counter.
        detail: The contradiction that the audit saw.
    """

    kind: str
    subject: str
    detail: str

    @property
    def is_harmless(self) -> bool:
        """True if the finding does not affect how the queue works."""
        return self.kind == "second_entry"


async def audit(queue: Queue) -> list[Finding]:
    """Return the findings; an empty list if the queue breaks no invariant.

    While a key has a wrong type, which no command of the audit could read, it finds only such keys.

    Args:
        queue: The queue; it may be in use.
    """
    snapshot = await take_snapshot(queue)
    for _ in range(MAX_SNAPSHOTS - 1):
        if snapshot.is_at_rest:
            break
        snapshot = await take_snapshot(queue)
    if snapshot.wrong_types:
        return _wrong_types(snapshot)
    suspicious = [name for name, place in snapshot.places.items() if any(_faults(name, place))]
    findings = [
        *await _moved_keys(queue, snapshot),
        *[finding async for finding in _second_look(queue, snapshot, suspicious)],
        *[finding async for finding in _unserved_lanes(queue, snapshot)],
        *[finding async for finding in _unknown_parked(queue, snapshot)],
        *[finding async for finding in _keys_without_lease(queue, snapshot)],
        *await _dead_findings(queue),
        *await _counter_findings(queue, snapshot),
    ]
    return sorted(findings, key=lambda finding: (finding.kind, finding.subject))


def _faults(name: str, place: Place) -> Iterable[Finding]:
    """Yield the faults of one id; pure, so that both looks follow the same rules."""
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
    """Yield the faults of an id without a request. Claims clear its lane entries (tombstones)."""
    if place.holders:
        detail = f"in flight at {', '.join(place.holders)} without a request"
        yield Finding("no_record", name, detail)
    if place.is_delayed or place.notes:
        keys = [*(["delayed"] if place.is_delayed else []), *place.notes]
        yield Finding("leftover", name, f"no request, but an entry in {', '.join(keys)}")


def _wrong_types(snapshot: Snapshot) -> list[Finding]:
    return [
        Finding(
            "wrong_type",
            key,
            f"it is a {actual} and must be a {right}: find out who writes to this queue's keys (docs/operations.md,"
            " Rights), then delete it. The rest of the queue was not checked",
        )
        for key, (actual, right) in sorted(snapshot.wrong_types.items())
    ]


async def _moved_keys(queue: Queue, snapshot: Snapshot) -> list[Finding]:
    names = snapshot.keys.get("wrong_type", [])
    types = await read_together(queue, *(("TYPE", queue.keys.wrong_type(name)) for name in names))
    return [
        Finding("wrong_type", name, moved_in_words(queue.keys, {name: kind.decode()}))
        for name, kind in zip(names, types, strict=True)
    ]


async def _second_look(
    queue: Queue, snapshot: Snapshot, names: Sequence[str]
) -> AsyncIterator[Finding]:
    for name in names:
        for finding in _faults(
            name, await read_place(queue, name, snapshot.keys.get("in_flight", []))
        ):
            yield finding


async def _unserved_lanes(queue: Queue, snapshot: Snapshot) -> AsyncIterator[Finding]:
    """Report LISTs and ZSETs that no claim would read."""
    for kind, command in ((PENDING, "LLEN"), *((kind, "ZCARD") for kind in ORDERED_KINDS)):
        for name in snapshot.keys.get(kind, ()):
            lane, _, flow = name.partition(":")
            depth, virtual_time = await read_together(
                queue,
                (command, queue.keys.of_kind(kind, name)),
                ("ZSCORE", queue.keys.flows(lane), flow),
            )
            if depth and (virtual_time is None or lane not in LANES):
                detail = f"{depth} entries that no claim finds"
                yield Finding("unserved_lane", f"{kind}:{name}", detail)


async def _unknown_parked(queue: Queue, snapshot: Snapshot) -> AsyncIterator[Finding]:
    """Report parked requests that no claim returns, because `parked` lacks their reason."""
    for reason in filter(None, snapshot.keys.get("parked", ())):
        depth, reasons = await read_together(
            queue, ("ZCARD", queue.keys.parked_for(reason)), ("SMEMBERS", queue.keys.parked)
        )
        if depth and reason.encode() not in reasons:
            yield Finding("unserved_lane", f"parked:{reason}", f"{depth} entries; parked lacks it")


async def _keys_without_lease(queue: Queue, snapshot: Snapshot) -> AsyncIterator[Finding]:
    """Report keys of workers without a lease, which no reap will remove."""
    left = [
        (kind, worker) for kind in OF_WORKERS for worker in snapshot.keys.get(kind, ()) if worker
    ]
    for kind, worker in left:
        is_there, lease = await read_together(
            queue,
            ("EXISTS", queue.keys.of_kind(kind, worker)),
            ("ZSCORE", queue.keys.workers, worker),
        )
        if is_there and lease is None:
            yield Finding("no_lease", f"{kind}:{worker}", f"worker {worker} holds no lease")


async def _dead_findings(queue: Queue) -> list[Finding]:
    keys = queue.keys
    letters, infos = await read_together(
        queue, ("ZRANGE", keys.dead_letters, 0, -1), ("HKEYS", keys.dead_letter_info)
    )
    return [
        Finding(
            "dead_mismatch", name.decode(), "it is in only one of dead_letters and dead_letter_info"
        )
        for name in set(letters) ^ set(infos)
    ]


async def _counter_findings(queue: Queue, snapshot: Snapshot) -> list[Finding]:
    compared = await _counted_at_once(queue)
    if snapshot.is_at_rest:
        compared |= _counted_in_snapshot(snapshot)
    return [
        Finding("counter_mismatch", name, f"the counter says {counter}, there are {seen}")
        for name, (counter, seen) in compared.items()
        if counter != seen
    ]


async def _counted_at_once(queue: Queue) -> dict[str, tuple[int, int]]:
    keys = queue.keys
    fields, num_owned, loads = await read_together(
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


def _counted_in_snapshot(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    stats, places = Counter(snapshot.stats_after), snapshot.places.values()
    num_terminal = sum(stats[status] for status in TERMINAL)  # some results have passed their TTL
    num_results = sum(place.has_result for place in places)
    num_waiting = sum(place.has_request and not place.holders for place in places)
    return {
        "in_flight": (stats["in_flight"], sum(len(place.holders) for place in places)),
        "queued": (stats["queued"], num_waiting),
        "queued_tokens": (
            stats["queued_tokens"],
            sum(place.cost for place in places if not place.holders),
        ),
        "in_flight_tokens": (
            stats["in_flight_tokens"],
            sum(place.cost for place in places if place.holders),
        ),
        "bytes": (stats["bytes"], snapshot.num_bytes),
        "large": (stats["large"], snapshot.num_large),
        "terminal": (num_terminal, max(num_terminal, num_results)),
    }

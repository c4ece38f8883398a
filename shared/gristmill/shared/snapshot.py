"""Take a snapshot of a queue: where every id is. The audit checks it, and tests read it.

It only reads, with SCAN. Its memory grows by about 300 bytes for each id. It reads the header of a
record, never its body.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.shared.chunking import chunks
from gristmill.shared.key_types import type_of
from gristmill.shared.keys import ALL_TENANTS, ORDERED_KINDS, PENDING
from gristmill.shared.queue import Queue
from gristmill.shared.records import NUM_FIELDS, cost_of, required_names

CHUNK = 500
"""Most ids that one call reads."""

HEADER_BYTES = 4096
"""Bytes that cover the longest header of a record; a body may have megabytes."""

LARGE_BYTES = 256 * 1024
"""Bytes above which a record is counted as large (`lua/includes/counters.lua`)."""


@dataclass(slots=True)
class Place:
    """The places in which one id was seen.

    Attributes:
        has_request: True if its request exists.
        has_result: True if its result exists.
        cost: Estimated tokens of its request, as the scripts count them; 0 without a request.
        num_entries: Entries in lanes.
        is_delayed: True if it is in `delayed`.
        owner: Worker that holds it according to `owner`.
        holders: Workers that hold it according to their `in_flight:<worker>`.
        notes: Names of the keys among `attempts` and `deadlines` that have an entry for it.
    """

    has_request: bool = False
    has_result: bool = False
    cost: int = 0
    num_entries: int = 0
    is_delayed: bool = False
    owner: str | None = None
    holders: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Snapshot:
    """The result of one pass over the keys of a queue.

    Attributes:
        stats_before: Counters when it began.
        stats_after: Counters when it ended.
        keys: First word of a key -> the rest of each key with that first word.
        wrong_types: Key -> the type that it has and the type that it must have, if they differ.
        places: Id -> the places in which it was seen.
        num_bytes: Bytes of all requests.
        num_large: Requests of more than `LARGE_BYTES`.
    """

    stats_before: Mapping[str, int] = field(default_factory=dict)
    stats_after: Mapping[str, int] = field(default_factory=dict)
    keys: dict[str, list[str]] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    wrong_types: dict[str, tuple[str, str]] = field(default_factory=dict)
    num_bytes: int = 0
    num_large: int = 0

    @property
    def is_at_rest(self) -> bool:
        """True if nothing moved in the pass: each transition raises a counter that never falls."""
        return self.stats_before == self.stats_after

    def place(self, request_id: bytes | str) -> Place:
        """Return the places in which the pass has seen an id so far."""
        name = request_id.decode() if isinstance(request_id, bytes) else request_id
        return self.places.setdefault(name, Place())


async def read_together(queue: Queue, *commands: Sequence[Any]) -> list[Any]:
    """Run commands that only read, all at one instant, and return their replies.

    This is a script, not MULTI/EXEC: redis-py's asyncio cluster client starts a thread and an event
    loop for each command of a transaction.
    """
    words = [word for command in commands for word in (len(command), *command)]
    replies: list[Any] = await queue.scripts.run("read_together", *words)
    return replies


async def take_snapshot(queue: Queue) -> Snapshot:
    """Read every key of a queue; an id that moves during the pass may be seen twice or never.

    If a key has a wrong type, the snapshot has only the keys and their types.
    """
    snapshot = Snapshot()
    found = {key async for key in queue.redis.scan_iter(match=queue.keys.pattern, count=1000)}
    for keys in chunks(list(found), CHUNK):
        await _read_types(queue, snapshot, keys)
    if snapshot.wrong_types:
        return snapshot
    snapshot.stats_before = await _stats(queue)
    await _read_records(queue, snapshot)
    await _read_waiting(queue, snapshot)
    await _read_held(queue, snapshot)
    await _read_notes(queue, snapshot)
    snapshot.stats_after = await _stats(queue)
    return snapshot


async def read_place(queue: Queue, name: str, workers: Sequence[str]) -> Place:
    """Return all places of one id, read at one instant.

    Args:
        queue: The queue.
        name: The id.
        workers: Workers that may hold it; those with a lease are added.
    """
    keys = queue.keys
    pending, ordered = await _places_of(queue, name)
    (leased,) = await read_together(queue, ("ZRANGE", keys.workers, 0, -1))
    workers = sorted({*workers, *(worker.decode() for worker in leased)})
    reply = await read_together(
        queue,
        ("EXISTS", keys.request(name)),
        ("EXISTS", keys.result(name)),
        ("ZSCORE", keys.delayed, name),
        ("HGET", keys.owner, name),
        ("HEXISTS", keys.attempts, name),
        ("ZSCORE", keys.deadlines, name),
        *(("HEXISTS", keys.in_flight(worker), name) for worker in workers),
        *(("LPOS", key, name, "COUNT", 0) for key in pending),
        *(("ZSCORE", key, name) for key in ordered),
    )
    has_request, has_result, due_ms, owner, has_attempts, deadline_ms, *rest = reply
    held, entries = rest[: len(workers)], rest[len(workers) :]
    in_lists, in_order = entries[: len(pending)], entries[len(pending) :]
    notes = {"attempts": has_attempts, "deadlines": deadline_ms is not None}
    return Place(
        has_request=bool(has_request),
        has_result=bool(has_result),
        num_entries=sum(map(len, in_lists)) + sum(position is not None for position in in_order),
        is_delayed=due_ms is not None,
        owner=_worker(owner) if owner else None,
        holders=[worker for worker, is_held in zip(workers, held, strict=True) if is_held],
        notes=[note for note, is_there in notes.items() if is_there],
    )


async def _places_of(queue: Queue, name: str) -> tuple[list[str], list[str]]:
    """Return the keys in which a request may wait under any order: the LISTs, then the ZSETs."""
    header: Any = await queue.redis.getrange(queue.keys.request(name), 0, HEADER_BYTES)
    fields = header.partition(b"\n")[0].decode(errors="replace").split("|")
    if len(fields) < NUM_FIELDS:
        return [], []
    tenant, priority = fields[3], fields[4]
    places = [(lane, flow) for lane in {priority, "normal"} for flow in (tenant, ALL_TENANTS)]
    pending = [queue.keys.waiting(*place) for place in (("suspect", tenant), *places)]
    ordered = [queue.keys.waiting(*place, kind) for kind in ORDERED_KINDS for place in places]
    reasons = (f"batch:{fields[6]}", f"facts:{','.join(required_names(fields[NUM_FIELDS:]))}")
    return pending, [*ordered, *map(queue.keys.parked_for, reasons)]


async def _read_types(queue: Queue, snapshot: Snapshot, keys: Sequence[bytes]) -> None:
    types = await read_together(queue, *(("TYPE", key) for key in keys))
    for key, found in zip(keys, types, strict=True):
        kind, name = queue.keys.parse(key)
        right, actual = type_of(kind, name), found.decode()
        if right in (None, actual) or actual == "none":  # "none": gone since the scan
            snapshot.keys.setdefault(kind, []).append(name)
        else:
            snapshot.wrong_types[key.decode()] = (actual, right)


async def _read_records(queue: Queue, snapshot: Snapshot) -> None:
    for name in snapshot.keys.get("result", ()):
        snapshot.place(name).has_result = True
    for names in chunks(snapshot.keys.get("request", []), CHUNK):
        keys = [queue.keys.request(name) for name in names]
        sizes = await read_together(queue, *(("STRLEN", key) for key in keys))
        headers = await read_together(queue, *(("GETRANGE", key, 0, HEADER_BYTES) for key in keys))
        snapshot.num_bytes += sum(sizes)
        snapshot.num_large += sum(size > LARGE_BYTES for size in sizes)
        for name, header in zip(names, headers, strict=True):
            place = snapshot.place(name)
            place.has_request, place.cost = True, cost_of(header)


async def _read_waiting(queue: Queue, snapshot: Snapshot) -> None:
    for name in snapshot.keys.get(PENDING, ()):
        async for request_id in _elements(queue, queue.keys.of_kind(PENDING, name)):
            snapshot.place(request_id).num_entries += 1
    ordered = ((kind, name) for kind in ORDERED_KINDS for name in snapshot.keys.get(kind, ()))
    for key in (queue.keys.of_kind(*each) for each in ordered):
        async for request_id, _ in queue.redis.zscan_iter(key, count=CHUNK):
            snapshot.place(request_id).num_entries += 1
    for reason in snapshot.keys.get("parked", ()):
        if reason:  # without one it is the SET of reasons
            async for request_id, _ in queue.redis.zscan_iter(queue.keys.parked_for(reason)):
                snapshot.place(request_id).num_entries += 1
    async for request_id, _ in queue.redis.zscan_iter(queue.keys.delayed, count=CHUNK):
        snapshot.place(request_id).is_delayed = True


async def _read_held(queue: Queue, snapshot: Snapshot) -> None:
    for worker in snapshot.keys.get("in_flight", ()):
        async for request_id, _ in queue.redis.hscan_iter(
            queue.keys.in_flight(worker), count=CHUNK
        ):
            snapshot.place(request_id).holders.append(worker)
    async for request_id, owner in queue.redis.hscan_iter(queue.keys.owner, count=CHUNK):
        snapshot.place(request_id).owner = _worker(owner)


def _worker(owner: bytes) -> str:
    """Return the worker from the value of an `owner` field; the charge follows the worker there."""
    return owner.partition(b"|")[0].decode()


async def _read_notes(queue: Queue, snapshot: Snapshot) -> None:
    async for request_id, _ in queue.redis.hscan_iter(queue.keys.attempts, count=CHUNK):
        snapshot.place(request_id).notes.append("attempts")
    async for request_id, _ in queue.redis.zscan_iter(queue.keys.deadlines, count=CHUNK):
        snapshot.place(request_id).notes.append("deadlines")


async def _elements(queue: Queue, key: str) -> AsyncIterator[bytes | str]:
    start = 0
    while chunk := await queue.redis.lrange(key, start, start + CHUNK - 1):
        for element in chunk:
            yield element
        start += len(chunk)


async def _stats(queue: Queue) -> dict[str, int]:
    return integers((await read_together(queue, ("HGETALL", queue.keys.stats)))[0])


def integers(flat: Sequence[bytes]) -> dict[str, int]:
    """Return the fields of a HASH of counters from the flat reply of HGETALL in a script."""
    return {name.decode(): int(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}

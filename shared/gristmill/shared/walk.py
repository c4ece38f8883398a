"""Read where every id of a queue is; `audit.py` judges what this sees. Reads only, with SCAN.

Memory grows with the number of ids, about 300 bytes each; records are never read whole.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from gristmill.shared.keys import ALL_TENANTS, ORDERED
from gristmill.shared.queue import Queue

CHUNK = 500
HEADER_BYTES = 2048
"""Covers the longest header of a record; a body may have megabytes."""


@dataclass(slots=True)
class Place:
    """Where one id was seen.

    Attributes:
        has_request: Whether its request exists.
        has_result: Whether its result exists.
        num_entries: Entries in lanes.
        is_delayed: Whether it waits for a time.
        owner: Who holds it, by `owner`.
        holders: Who hold it, by their `inflight:`.
        notes: Which of `attempts` and `deadlines` mention it.
    """

    has_request: bool = False
    has_result: bool = False
    num_entries: int = 0
    is_delayed: bool = False
    owner: str | None = None
    holders: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Walk:
    """What one pass over the keys of a queue saw.

    Attributes:
        stats_before: Counters when it began.
        stats_after: Counters when it ended.
        keys: First word of a key -> what follows it.
        places: Id -> where it was seen.
        num_bytes: Bytes of all requests.
    """

    stats_before: Mapping[str, int]
    stats_after: Mapping[str, int] = field(default_factory=dict)
    keys: dict[str, list[str]] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    num_bytes: int = 0

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing moved meanwhile: each transition moves a counter that only grows."""
        return self.stats_before == self.stats_after

    def place(self, request_id: bytes | str) -> Place:
        """Return where an id was seen so far."""
        name = request_id.decode() if isinstance(request_id, bytes) else request_id
        return self.places.setdefault(name, Place())


async def at_once(queue: Queue, *commands: Sequence[Any]) -> list[Any]:
    """Return the replies of commands that see one instant.

    In a script and not in MULTI/EXEC: redis-py's asyncio cluster client starts a thread and an event loop for
    each command of a transaction.
    """
    words = [word for command in commands for word in (len(command), *command)]
    script = queue.redis.register_script(_look_source())
    replies: list[Any] = await script(keys=[queue.keys.prefix], args=words)
    return replies


@cache
def _look_source() -> str:
    return (files("gristmill.shared") / "lua" / "look.lua").read_text()


async def walk_over(queue: Queue) -> Walk:
    """Read every key of a queue; what moves meanwhile may be seen twice or not at all."""
    walk = Walk(stats_before=await _stats(queue))
    seen = {key async for key in queue.redis.scan_iter(match=f"{queue.keys.prefix}*", count=1000)}
    for key in seen:
        kind, _, name = key.decode().removeprefix(queue.keys.prefix).partition(":")
        walk.keys.setdefault(kind, []).append(name)
    await _read_records(queue, walk)
    await _read_waiting(queue, walk)
    await _read_held(queue, walk)
    await _read_notes(queue, walk)
    walk.stats_after = await _stats(queue)
    return walk


async def look_at(queue: Queue, name: str, workers: Sequence[str]) -> Place:
    """Return where one id is, all of its places seen in one instant.

    Args:
        queue: Which queue.
        name: The id.
        workers: Who may hold it, besides those that hold a lease now.
    """
    keys = queue.keys
    pending, ordered = await _places_of(queue, name)
    (leased,) = await at_once(queue, ("ZRANGE", keys.workers, 0, -1))
    workers = sorted({*workers, *(worker.decode() for worker in leased)})
    reply = await at_once(
        queue,
        ("EXISTS", keys.request(name)),
        ("EXISTS", keys.result(name)),
        ("ZSCORE", keys.delayed, name),
        ("HGET", keys.owner, name),
        ("HEXISTS", keys.attempts, name),
        ("ZSCORE", keys.deadlines, name),
        *(("HEXISTS", keys.inflight(worker), name) for worker in workers),
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
    """Return where a request may wait under one policy or another: the LISTs, then the ZSETs."""
    header: Any = await queue.redis.getrange(queue.keys.request(name), 0, HEADER_BYTES)
    fields = header.partition(b"\n")[0].decode(errors="replace").split("|")
    if len(fields) < 5:
        return [], []
    tenant, priority = fields[3], fields[4]
    places = [f"{lane}:{flow}" for lane in {priority, "normal"} for flow in (tenant, ALL_TENANTS)]
    pending = [f"{queue.keys.prefix}pending:{place}" for place in (f"suspect:{tenant}", *places)]
    return pending, [f"{queue.keys.prefix}{kind}:{place}" for kind in ORDERED for place in places]


async def _read_records(queue: Queue, walk: Walk) -> None:
    for name in walk.keys.get("result", ()):
        walk.place(name).has_result = True
    requests = walk.keys.get("request", [])
    for names in (requests[i : i + CHUNK] for i in range(0, len(requests), CHUNK)):
        for name in names:
            walk.place(name).has_request = True
        sizes = await at_once(queue, *(("STRLEN", queue.keys.request(name)) for name in names))
        walk.num_bytes += sum(sizes)


async def _read_waiting(queue: Queue, walk: Walk) -> None:
    for name in walk.keys.get("pending", ()):
        async for request_id in _elements(queue, f"{queue.keys.prefix}pending:{name}"):
            walk.place(request_id).num_entries += 1
    for key in (f"{kind}:{name}" for kind in ORDERED for name in walk.keys.get(kind, ())):
        async for request_id, _ in queue.redis.zscan_iter(queue.keys.prefix + key, count=CHUNK):
            walk.place(request_id).num_entries += 1
    async for request_id, _ in queue.redis.zscan_iter(queue.keys.delayed, count=CHUNK):
        walk.place(request_id).is_delayed = True


async def _read_held(queue: Queue, walk: Walk) -> None:
    for worker in walk.keys.get("inflight", ()):
        async for request_id, _ in queue.redis.hscan_iter(queue.keys.inflight(worker), count=CHUNK):
            walk.place(request_id).holders.append(worker)
    async for request_id, owner in queue.redis.hscan_iter(queue.keys.owner, count=CHUNK):
        walk.place(request_id).owner = _worker(owner)


def _worker(owner: bytes) -> str:
    """Return who holds a request, without what was charged for it."""
    return owner.partition(b"|")[0].decode()


async def _read_notes(queue: Queue, walk: Walk) -> None:
    async for request_id, _ in queue.redis.hscan_iter(queue.keys.attempts, count=CHUNK):
        walk.place(request_id).notes.append("attempts")
    async for request_id, _ in queue.redis.zscan_iter(queue.keys.deadlines, count=CHUNK):
        walk.place(request_id).notes.append("deadlines")


async def _elements(queue: Queue, key: str) -> AsyncIterator[bytes | str]:
    start = 0
    while chunk := await queue.redis.lrange(key, start, start + CHUNK - 1):
        for element in chunk:
            yield element
        start += len(chunk)


async def _stats(queue: Queue) -> dict[str, int]:
    return integers((await at_once(queue, ("HGETALL", queue.keys.stats)))[0])


def integers(flat: Sequence[bytes]) -> dict[str, int]:
    """Return the fields of a HASH of counters, as HGETALL says them to a script."""
    return {name.decode(): int(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}

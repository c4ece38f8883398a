"""Find and remove what the keys of one queue hold of one tenant. `gristmill tenant purge` calls it.

Files and batches are the producer's (`producer/…/batches/file_purge.py`), and so are API keys and limits.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gristmill.shared.errors import InvalidRequest
from gristmill.shared.key_scan import scan_names
from gristmill.shared.keys import LANES, ORDERED_KINDS, PENDING
from gristmill.shared.operations import IDS_A_CALL
from gristmill.shared.queue import Queue
from gristmill.shared.records import tenant_of
from gristmill.shared.request_json import request_from_json
from gristmill.shared.results import tenant_of_result
from gristmill.shared.snapshot import HEADER_BYTES, read_together

ELEMENTS_A_CALL = 20
"""Dead letters or inbox elements that one call reads; each may have megabytes."""

RESULT_HEAD_BYTES = 4096
"""Bytes that cover the fields of a terminal record up to its tenant."""

_NO_LIMIT = 2**40
"""Bytes of a body; an element that is over a limit belongs to its tenant all the same."""


@dataclass(frozen=True, slots=True)
class DataKind:
    """One kind of data, such as results.

    Attributes:
        name: Its name for people, in the plural.
        find: Yields what there is, in chunks of at most 500. May leave out what others remove during the call.
        remove: Removes a chunk, and returns how many of it were still there.
    """

    name: str
    find: Callable[[], AsyncIterator[Sequence[Any]]]
    remove: Callable[[Sequence[Any]], Awaitable[int]]


class TenantData:
    """The data of one tenant in one queue.

    Args:
        queue: The queue; others may use it at the same time.
        tenant: Name of the tenant.
        batches: Ids of the tenant's batches. Results of earlier versions name no tenant; those of these
            batches are found by their ids.

    Attributes:
        unattributed: Kind -> how many its last pass found that name no tenant; they are left alone.
    """

    def __init__(self, queue: Queue, tenant: str, batches: Collection[str] = ()) -> None:
        self._queue = queue
        self._redis: Any = queue.redis
        self._keys = queue.keys
        self._tenant = tenant
        self._batches = batches
        self.unattributed: Counter[str] = Counter()

    def kinds(self) -> list[DataKind]:
        """Return the kinds in the order in which they must be removed.

        An inbox element becomes a request. A cancelled request becomes a result and leaves a tombstone in its lane.
        """
        return [
            self._elements_in("inbox elements", self._keys.inbox),
            DataKind("inbox elements that workers took", self._admitting, self._drop_admitting),
            self._elements_in("inbox elements of dead workers", self._keys.inbox_suspects),
            DataKind("requests", self._requests, self._cancel),
            DataKind("results", self._results, self._drop_results),
            DataKind("dead letters", self._dead_letters, self._queue.dead_letters.purge),
            DataKind("entries in lanes", self._lanes, self._clear_lanes),
            DataKind("notes about the tenant", self._notes, self._drop_notes),
            DataKind("counts of its load", self._load, _keep),
        ]

    # --- inbox

    def _elements_in(self, kind: str, key: str) -> DataKind:
        """Return the elements of a LIST as a kind of data."""

        async def find() -> AsyncIterator[list[bytes]]:
            """Yield elements from the end of the list on: a removed one then moves none that is still to be read."""
            self.unattributed[kind] = 0
            length: int = await self._redis.llen(key)
            for end in range(length, 0, -ELEMENTS_A_CALL):
                start = max(0, end - ELEMENTS_A_CALL)
                found = await self._redis.lrange(key, start, end - 1)
                if mine := [each for each in found if self._is_mine(each, kind)]:
                    yield mine

        async def remove(elements: Sequence[bytes]) -> int:
            return sum([await self._redis.lrem(key, -1, each) for each in elements])

        return DataKind(kind, find, remove)

    async def _admitting(self) -> AsyncIterator[list[tuple[str, bytes]]]:
        async for workers in scan_names(self._queue, "admitting"):
            for worker in workers:
                key = self._keys.of_kind("admitting", worker)
                found = await self._redis.hgetall(key)  # at most 16 a claim
                if mine := [(key, token) for token, each in found.items() if self._is_mine(each)]:
                    yield mine

    async def _drop_admitting(self, elements: Sequence[tuple[str, bytes]]) -> int:
        """Remove elements; `admit` of a removed one answers `gone`."""
        return sum([await self._redis.hdel(key, token) for key, token in elements])

    def _is_mine(self, element: bytes, kind: str = "") -> bool:
        owner = tenant_of_element(element)
        if owner is None and kind:
            self.unattributed[kind] += 1
        return owner == self._tenant

    # --- requests and their ends

    async def _requests(self) -> AsyncIterator[list[str]]:
        async for ids in scan_names(self._queue, "request"):
            heads = await self._heads(map(self._keys.request, ids), HEADER_BYTES)
            owners = map(tenant_of, heads)
            if mine := [name for name, owner in zip(ids, owners, strict=True) if owner == self._tenant]:  # fmt: skip
                yield mine

    async def _cancel(self, ids: Sequence[str]) -> int:
        """End requests, wherever they are.

        The next beat tells the worker that holds one to abort it. If the worker settles it later, nothing changes: a
        request without a record cannot be settled.
        """
        codes = await self._queue.cancel(ids)
        return sum(code in ("queued", "running") for code in codes)

    async def _results(self) -> AsyncIterator[list[str]]:
        self.unattributed["results"] = 0
        async for ids in scan_names(self._queue, "result"):
            heads = await self._heads(map(self._keys.result, ids), RESULT_HEAD_BYTES)
            pairs = zip(ids, heads, strict=True)
            if mine := [name for name, head in pairs if self._is_my_result(name, head)]:
                yield mine

    def _is_my_result(self, request_id: str, head: bytes) -> bool:
        owner = tenant_of_result(head)
        if owner is None and request_id.rpartition("-")[0] in self._batches:
            return True
        self.unattributed["results"] += owner is None and head != b""
        return owner == self._tenant

    async def _drop_results(self, ids: Sequence[str]) -> int:
        """Remove results, and before them the events of the same requests, which are found by their results."""
        await self._redis.unlink(*map(self._keys.events, ids))
        num_dropped: int = await self._redis.unlink(*map(self._keys.result, ids))
        return num_dropped

    async def _heads(self, keys: Any, size: int) -> list[bytes]:
        return await read_together(self._queue, *(("GETRANGE", key, 0, size - 1) for key in keys))

    async def _dead_letters(self) -> AsyncIterator[list[str]]:
        self.unattributed["dead letters"] = 0
        letters = self._redis.hscan_iter(self._keys.dead_letter_info, count=ELEMENTS_A_CALL)
        mine: list[str] = []
        async for dead_id, blob in letters:
            record = blob.partition(b"\n")[2]
            owner = tenant_of(record) or tenant_of_element(record)
            self.unattributed["dead letters"] += owner is None
            if owner == self._tenant:
                mine.append(dead_id.decode())
            if len(mine) == IDS_A_CALL:
                yield mine
                mine = []
        if mine:
            yield mine

    # --- what names the tenant

    async def _lanes(self) -> AsyncIterator[list[str]]:
        kinds = (PENDING, *ORDERED_KINDS)
        lanes = [self._keys.waiting(lane, self._tenant, kind) for lane in LANES for kind in kinds]
        scores = [self._keys.of_kind(kind, lane) for kind in ("flows", "debt") for lane in LANES]
        replies = await read_together(
            self._queue, *(("EXISTS", key) for key in lanes),
            *(("ZSCORE", key, self._tenant) for key in scores),
        )  # fmt: skip
        if found := [key for key, reply in zip([*lanes, *scores], replies, strict=True) if reply]:
            yield found

    async def _clear_lanes(self, _: Sequence[str]) -> int:
        num_cleared = 0
        while num_now := await self._queue.scripts.run("clear_lanes", self._tenant, IDS_A_CALL):
            num_cleared += num_now
        return num_cleared

    async def _notes(self) -> AsyncIterator[list[tuple[str, bytes]]]:
        """Yield the fields of hashes that name the tenant: its weight, its output share, its prompt prefixes."""
        name = self._tenant.encode()
        for kind in ("tenant_weights", "tenant_output_shares"):
            key = self._keys.of_kind(kind, "")
            if await self._redis.hexists(key, name):
                yield [(key, name)]
        key = self._keys.of_kind("prefix_groups", "")
        groups = self._redis.hscan_iter(key, match=f"*|{self._tenant}|*", count=IDS_A_CALL)
        async for field, _ in groups:
            if field.split(b"|")[1] == name:
                yield [(key, field)]

    async def _drop_notes(self, fields: Sequence[tuple[str, bytes]]) -> int:
        return sum([await self._redis.hdel(key, field) for key, field in fields])

    async def _load(self) -> AsyncIterator[list[str]]:
        load = await self._queue.tenants.load(self._tenant)
        if any(load):
            yield [self._keys.tenant_load]


async def _keep(_: Sequence[Any]) -> int:
    """Remove nothing: the ends of the requests lower the counts."""
    return 0


def tenant_of_element(element: bytes) -> str | None:
    """Return the tenant that an inbox element names or would get, or None if it is unreadable."""
    try:
        fields = orjson.loads(element)
        if isinstance(fields, dict) and isinstance(fields.get("tenant"), str):
            return str(fields["tenant"])
        request = request_from_json(element, max_request_bytes=_NO_LIMIT, default_id="unnamed")
    except (ValueError, InvalidRequest):
        return None
    return request.tenant

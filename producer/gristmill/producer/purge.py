"""Purge a whole queue, or kinds of data in it: remove them, then scan all keys and objects for what is left.

`gristmill queue purge` calls it, and `tenant_purge.py` for each queue. A purge may run twice, and it may be killed at any point
and run again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.file_purge import FilePurge
from gristmill.producer.noted_queues import forget_queue
from gristmill.shared.key_scan import scan_keys
from gristmill.shared.queue import Queue
from gristmill.shared.queue_purge import all_keys
from gristmill.shared.tenant_data import DataKind

MAX_PASSES = 10
"""Most passes over the data. The second finds what came during the first; more mean that producers still submit."""

SETTLE_S = 6.0
"""Seconds after which gateways know that a key is revoked (5 s), and stewards that they lost a batch (3 s)."""

MAX_STOPS = 2
"""Most times that a purge of a queue takes batches from stewards: during the first, one may still create children."""

NAMED_KINDS = {
    "request": "requests",
    "result": "results",
    "file": "files",
    "batch_record": "batches",
}
"""Kinds of keys that `count_of_queue` counts, with their names for people."""

Tell = Callable[[Mapping[str, int]], None]
"""Callback for progress: gets what was removed so far, by kind."""


@dataclass(slots=True)
class PurgeReport:
    """What a purge did.

    Attributes:
        removed: Kind -> how many were removed.
        left: Kind -> how many the scan still found.
        unattributed: Kind -> how many name no tenant, so that they stayed.
        num_keys: Keys that the scan looked at.
        num_objects: Objects in the storage that the scan looked at, those of other queues included; None if no record
            named a file or a batch, so that the storage did not matter.
    """

    removed: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    unattributed: Counter[str] = field(default_factory=Counter)
    num_keys: int = 0
    num_objects: int | None = None

    def fields(self) -> dict[str, Any]:
        """Return it as plain objects for JSON; `asdict` cannot copy a Counter."""
        counts = {"removed": self.removed, "left": self.left, "unattributed": self.unattributed}
        scanned = {"num_keys": self.num_keys, "num_objects": self.num_objects}
        return {name: dict(counter) for name, counter in counts.items()} | scanned


class Purge:
    """The removal of some kinds of data, in passes until one finds nothing.

    Args:
        store: The batches and files of the queue.
        files: The files and batches to remove.
        kinds: All kinds to remove, in order.
        tell: Called after each chunk.
        report: Gets what the purge did, in addition to what it says already.
    """

    def __init__(
        self,
        store: BatchStore,
        files: FilePurge,
        kinds: Sequence[DataKind],
        tell: Tell,
        report: PurgeReport,
    ) -> None:
        self._store = store
        self._files = files
        self._kinds = kinds
        self._tell = tell
        self._report = report

    async def run(self) -> PurgeReport:
        """Remove the data, scan for what is left, and return the report."""
        for _ in range(MAX_PASSES):
            if not await self._remove_all():
                break
        await self._scan()
        self._report.removed = +self._report.removed  # without zeros
        return self._report

    async def _remove_all(self) -> int:
        """Run one pass; return how much it removed."""
        before = self._report.removed.total()
        for kind in self._kinds:
            async for chunk in kind.find():
                self._report.removed[kind.name] += await kind.remove(chunk)
                self._tell(self._report.removed)
        return self._report.removed.total() - before

    async def _scan(self) -> None:
        """Count what is left: by the finders of each kind, and by the ids in the names of all keys and objects."""
        report = self._report
        for kind in self._kinds:
            async for chunk in kind.find():
                report.left[kind.name] += len(chunk)
        async for keys in scan_keys(self._store.queue):
            report.num_keys += len(keys)
            report.left["keys of its files and batches"] += sum(map(self._names_known_id, keys))
        if self._files.known_ids:
            await self._scan_objects()
        report.left = +report.left  # without zeros

    async def _scan_objects(self) -> None:
        report = self._report
        report.num_objects, strays = await asyncio.to_thread(self._scan_storage)
        if strays:
            await asyncio.to_thread(self._delete, strays)
            report.removed["objects without a record"] += len(strays)
            report.num_objects, strays = await asyncio.to_thread(self._scan_storage)
        report.left["objects"] += len(strays)

    def _names_known_id(self, key: bytes) -> bool:
        return self._store.queue.keys.parse(key)[1] in self._files.known_ids

    def _scan_storage(self) -> tuple[int, list[str]]:
        """Return how many objects there are, and which of them belong to files and batches of the purge.

        The name of an object is the id of its file and a unique number, and a folder has the id of its batch. A steward
        may have written such an object while its batch was removed.
        """
        num_objects, strays = 0, []
        for path in self._store.storage.paths():
            *folders, name = path.split("/")
            words = {*folders, name.rpartition(".")[0]}
            num_objects += 1
            if not words.isdisjoint(self._files.known_ids):
                strays.append(path)
        return num_objects, strays

    def _delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._store.storage.delete(path)


async def count_of_queue(queue: Queue) -> Counter[str]:
    """Return how much a purge of a queue would remove: what its keys hold, and all keys; empty without a key."""
    found: Counter[str] = Counter()
    async for keys in scan_keys(queue):
        kinds = Counter(queue.keys.parse(key)[0] for key in keys)
        found += Counter({NAMED_KINDS[kind]: kinds[kind] for kind in NAMED_KINDS if kinds[kind]})
        found["keys in all"] += len(keys)
    return found


async def purge_queue(
    store: BatchStore,
    *,
    tell: Tell = lambda _: None,
    settle_s: float = SETTLE_S,
    may_lack_objects: bool = False,
) -> PurgeReport:
    """Remove every key of a queue, and the objects of its files and batches. Its tenants stay in the directory.

    A gateway that still runs may write keys again; then the report has something left.

    Args:
        store: The batches and files of the queue.
        tell: Called once the storage is checked, and after each chunk.
        settle_s: Seconds to wait until stewards know that they lost a batch; there is no wait if they held none.
        may_lack_objects: True if objects of its files were lost with their storage.

    Raises:
        SettingsError: The storage is not the one that has the queue's files; nothing was deleted.
    """
    files = FilePurge(store, None)
    await files.check_storage(may_lack_objects=may_lack_objects)
    report = PurgeReport()
    tell(report.removed)
    for _ in range(MAX_STOPS):
        await files.stop_batches()
        if not files.num_held:
            break
        await asyncio.sleep(settle_s)
    kinds = [*files.kinds(), all_keys(store.queue)]
    await Purge(store, files, kinds, tell, report).run()
    await forget_queue(store.queue.redis, store.queue.keys.queue)
    return report

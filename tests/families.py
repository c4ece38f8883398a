"""Steps that the tests of batches with children share: two queues, files with lines of both, stewards of both."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batches import CHAT, TENANT, Steps, all_rows, chat, create, open_batches
from command_line import SettlingWorker

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_state import BatchState
from gristmill.producer.batches.child_batches import children_of
from gristmill.producer.batches.lifecycle import advance
from gristmill.producer.batches.objects import BatchRecord
from gristmill.shared.queue import Queue

HOME_MODEL, OTHER_MODEL = "stub", "other"


def serving(model: str) -> dict[str, str]:
    """Return what a worker that serves a model registers."""
    return {"models": model, "endpoints": CHAT}


@dataclass
class Family:
    """A queue with files and batches, and a second queue whose models they may name.

    Attributes:
        home: Batches as their clients see them.
        second: The second queue.
    """

    home: Batches
    second: Queue

    @property
    def first(self) -> Queue:
        """The queue of the parents."""
        return self.home.store.queue

    def worker(self, queue: Queue, model: str, **options: Any) -> SettlingWorker:
        """Return a worker that serves a model."""
        return SettlingWorker(queue, facts=serving(model), **options)

    async def create(self, lines: Iterable[Any], **options: Any) -> BatchRecord:
        """Create a batch."""
        return await create(self.home, lines, **options)

    async def parent(self, batch: BatchRecord) -> BatchState:
        """Return the state of a batch."""
        return await self.home.store.records.state(batch.id)

    async def turn(self, batch: BatchRecord, *, second: bool = True) -> bool:
        """Be the stewards of both queues, or of the first alone, for one step; return False once nothing is to do."""
        state = await self.parent(batch)
        if state.phase is None:
            return False
        if state.phase == "announce":
            await self.home.store.due.announced(batch.id)
        await advance(self.home.store, batch.id, Steps(2))
        for child in await children_of(self.home.store, state.record):
            has_steward = second or child.queue == self.first.keys.queue
            if has_steward and child.state and child.state.phase:
                await advance(child.store, child.id, Steps(2))
        return True

    async def run(self, batch: BatchRecord, *, second: bool = True) -> BatchRecord:
        """Be the stewards until nothing is left to do; return the batch as its client sees it."""
        while await self.turn(batch, second=second):
            pass
        return await self.seen(batch)

    async def seen(self, batch: BatchRecord) -> BatchRecord:
        """Return the batch as its client sees it."""
        return await self.home.batch(TENANT, batch.id)

    async def rows(self, batch: BatchRecord) -> list[dict[str, Any]]:
        """Return the rows of both files."""
        return await all_rows(self.home, batch)


def open_family(
    queue: Queue, folder: Path, *, is_declared: bool = False, **settings: Any
) -> Family:
    """Open a queue of a test and a second one on the same Redis."""
    second = Queue(queue.redis, f"{queue.keys.queue}.b", queue.limits)
    store = open_batches(queue, folder, **settings).store
    declared = {OTHER_MODEL: second.keys.queue} if is_declared else {}
    return Family(Batches(store, [queue.keys.queue, second.keys.queue], declared), second)


def mixed(number: int) -> list[Any]:
    """Return lines that name the two models by turns."""
    return [chat(f"c{i}", model=(HOME_MODEL, OTHER_MODEL)[i % 2]) for i in range(number)]


def ids(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the custom_id of each row."""
    return [row["custom_id"] for row in rows]

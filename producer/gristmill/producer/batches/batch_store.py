"""The batches and files of one queue; gateway, steward and `gristmill batch` open it."""

from typing import Self

from gristmill.producer.batches.batch_records import BatchRecords
from gristmill.producer.batches.creations import Creations
from gristmill.producer.batches.due_batches import DueBatches
from gristmill.producer.batches.settings import BatchSettings
from gristmill.producer.batches.storage import Storage
from gristmill.producer.batches.stored_files import StoredFiles
from gristmill.producer.budgets import Budgets
from gristmill.producer.tenants import Tenants
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue


class BatchStore:
    """One queue's batches: their state in Redis, their files in a storage.

    Args:
        queue: Queue that takes the requests of the batches.
        storage: Storage of files and rows.
        settings: Limits and TTLs.

    Attributes:
        records: The batches in Redis.
        due: The batches that need a steward.
        files: The files of tenants.
        creations: The Idempotency-Keys of callers.
        tenants: The tenants of the gateway.
        budgets: Their token budgets.
    """

    def __init__(self, queue: Queue, storage: Storage, settings: BatchSettings) -> None:
        self.queue = queue
        self.storage = storage
        self.settings = settings
        self.records = BatchRecords(queue)
        self.due = DueBatches(queue, self.records)
        self.creations = Creations(queue)
        self.tenants = Tenants(queue.redis)
        self.budgets = Budgets(queue)
        self.files = StoredFiles(queue, storage, settings, self.records)
        self._others: dict[str, BatchStore] = {}

    def of_queue(self, name: str) -> "BatchStore":
        """Return the batches of a queue of the same Redis, whose files lie in the same storage."""
        if name == self.queue.keys.queue:
            return self
        if name not in self._others:
            other = Queue(self.queue.redis, name, self.queue.limits)
            self._others[name] = BatchStore(other, self.storage, self.settings)
        return self._others[name]

    @classmethod
    def from_settings(cls, settings: BatchSettings) -> Self:
        """Connect to the Redis and the storage of the settings; `async with` closes it."""
        redis = connect(settings.redis_url.get_secret_value(), settings.socket_timeout_s)
        queue = Queue(redis, settings.queue, settings.limits)
        return cls(queue, Storage(settings.storage_url), settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.queue.redis.aclose()

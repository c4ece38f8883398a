"""Open the batches and files of a queue for a command, and run the command's coroutine."""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.settings import BatchSettings
from gristmill.producer.batches.storage import Storage, unusable
from gristmill.producer.commands.session import on_queue
from gristmill.shared.errors import GristmillError
from gristmill.shared.queue import Queue

T = TypeVar("T")


def on_store(
    settings: BatchSettings,
    work: Callable[[BatchStore], Coroutine[Any, Any, T]],
    *,
    any_format: bool = False,
) -> T:
    """Run a coroutine on the batches and files of a queue.

    Raises:
        GristmillError: The storage cannot be used.
        WrongFormat: Another version wrote the queue, and `any_format` is false.
    """
    storage = Storage(settings.storage_url)

    def on_open_queue(queue: Queue) -> Coroutine[Any, Any, T]:
        return work(BatchStore(queue, storage, settings))

    with storage_errors(storage):
        return on_queue(settings, on_open_queue, any_format=any_format)


@contextmanager
def storage_errors(storage: Storage) -> Iterator[None]:
    """Turn errors of a storage into Gristmill's.

    Raises:
        GristmillError: The storage cannot be used.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or type(error).__module__.startswith("botocore"):
            raise GristmillError(unusable(storage.url, error)) from None
        raise

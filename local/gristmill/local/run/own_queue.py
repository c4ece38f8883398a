"""The queue of the workers that `gristmill run` starts, on an embedded Redis or on the user's."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gristmill.local.processes import LoggedProcess
from gristmill.local.redis_server import embedded_server
from gristmill.local.steps import step
from gristmill.producer.batches.submit_run import (
    EMBEDDED,
    RunRecord,
    is_of_one_run,
    new_queue,
)
from gristmill.producer.commands.session import on_queue
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.queue import Queue
from gristmill.shared.queue_purge import all_keys
from gristmill.shared.settings import QueueSettings, read_settings


@dataclass(frozen=True, slots=True)
class OwnQueue:
    """The queue of one run.

    Attributes:
        settings: Redis, queue and limits.
        server: The embedded Redis; None if the user named one.
        has_old_data: True if the queue may have requests of a run that is not to be resumed.
    """

    settings: QueueSettings
    server: LoggedProcess | None
    has_old_data: bool

    def delete(self) -> None:
        """Delete the data of the queue; an embedded Redis takes them with it."""
        if self.server is None:
            on_queue(self.settings, _delete_keys)


@contextmanager
def own_queue(
    settings: QueueSettings, output: Path, *, is_forced: bool, is_passing: bool = False
) -> Iterator[OwnQueue]:
    """Yield the queue of a run; start a Redis for the length of the block if the user named none.

    Args:
        settings: Redis and limits as the user gave them.
        output: Output of the run; its record names the queue of an interrupted run.
        is_forced: True to begin a new run although there is an earlier one.
        is_passing: True for a preview, whose queue ends with the block; that of an earlier run stays as it is.

    Raises:
        InvalidRequest: The record of the run cannot be read.
    """
    if "redis_url" in settings.model_fields_set:
        leaves_earlier = is_forced and is_passing
        earlier = None if leaves_earlier else _earlier(output, is_forced=is_forced)
        url, name = settings.redis_url, earlier or new_queue()
        own = read_settings(QueueSettings, redis_url=url, queue=name)
        queue = OwnQueue(own, None, has_old_data=is_forced and earlier is not None)
        try:
            yield queue
        finally:
            if is_passing and earlier is None:
                queue.delete()
        return
    with embedded_queue() as queue:
        yield queue


def queue_to_be(settings: QueueSettings, output: Path, *, is_forced: bool) -> OwnQueue:
    """Return the queue that a run would have, without a Redis.

    Args:
        settings: Redis and limits as the user gave them.
        output: Output of the run; its record names the queue of an interrupted run.
        is_forced: True to begin a new run although there is an earlier one.

    Raises:
        InvalidRequest: The record of the run cannot be read.
    """
    has_url = "redis_url" in settings.model_fields_set
    name = (_earlier(output, is_forced=is_forced) or new_queue()) if has_url else EMBEDDED
    return OwnQueue(settings.model_copy(update={"queue": name}), None, has_old_data=False)


@contextmanager
def embedded_queue() -> Iterator[OwnQueue]:
    """Start a Redis for the length of a block, and yield its queue."""
    with ExitStack() as stack:
        with step("starting a Redis of its own"):
            server = stack.enter_context(embedded_server(password=secrets.token_urlsafe(24)))
        own = read_settings(QueueSettings, redis_url=server.url, queue=EMBEDDED, min_replicas=0)
        yield OwnQueue(own, server.process, has_old_data=False)


def _earlier(output: Path, *, is_forced: bool) -> str | None:
    """Return the queue in the record of the output, if `own_queue` made it."""
    record = None
    with suppress(*[InvalidRequest] if is_forced else []):
        record = RunRecord.read(output)
    return record.queue if record and is_of_one_run(record.queue) else None


async def _delete_keys(queue: Queue) -> None:
    keys = all_keys(queue)
    async for chunk in keys.find():
        await keys.remove(chunk)

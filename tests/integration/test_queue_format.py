"""A queue that another version wrote is refused with words, never half read."""

import pytest
from queues import open_worker, some_requests

from gristmill.shared.errors import WrongFormat
from gristmill.shared.queue import Queue
from gristmill.shared.scripts import FORMAT, PROTOCOL, lua_text


async def test_a_new_queue_gets_the_format_of_its_first_writer(queue: Queue) -> None:
    await queue.submit(some_requests(1))
    assert await queue.redis.get(queue.keys.format) == FORMAT.encode()
    assert f'FORMAT_OF_KEYS = "{FORMAT}"' in lua_text("includes/format")
    assert PROTOCOL.partition(".")[0] == FORMAT


@pytest.mark.parametrize(("format_of_queue", "words"), [("2", "format 2"), (None, "before 0.1.0")])
async def test_a_queue_of_another_format_is_refused(
    queue: Queue, format_of_queue: str | None, words: str
) -> None:
    """88a047f wrote no format, and other keys beside `stats`."""
    await queue.redis.hset(queue.keys.stats, "queued", "5")
    if format_of_queue:
        await queue.redis.set(queue.keys.format, format_of_queue)
    for call in (lambda: queue.submit(some_requests(1)), lambda: open_worker(queue), queue.stats):
        with pytest.raises(WrongFormat, match=words) as caught:
            await call()
        assert "gristmill queue purge" in str(caught.value)
    assert await queue.redis.hgetall(queue.keys.stats) == {b"queued": b"5"}
    assert await queue.redis.exists(queue.keys.workers) == 0


async def test_looking_at_an_empty_queue_writes_nothing(queue: Queue) -> None:
    await queue.stats()
    assert await queue.redis.exists(queue.keys.format) == 0

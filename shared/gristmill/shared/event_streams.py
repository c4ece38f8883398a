"""The events of requests that stream: how a request asks for them, and the Redis streams that carry them.

A gateway gives a request the fact `stream`. A worker that knows the fact appends the events of the answer to
`events:<id>` while the engine generates. The request's body asks for no stream, so a worker that does not know the fact
answers it as any other. docs/protocol.md describes the entries.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gristmill.shared.keys import Keys
from gristmill.shared.records import Claimed
from gristmill.shared.redis_types import AnyRedis, ScriptRunner
from gristmill.shared.request import CHAT, COMPLETIONS, RESPONSES

FACT = "stream"
"""Fact of a request that streams; its value names the true `stream_options`, separated by commas."""

STREAMED = (CHAT, COMPLETIONS, RESPONSES)
"""Endpoints whose answers stream."""

STREAM_OPTIONS = ("include_usage", "continuous_usage_stats")
"""The fields of `stream_options` that have an effect in vLLM."""

START = "0-0"
"""Position before the first entry of a stream."""

ENTRIES_A_READ = 16
"""Most entries of one stream in one read; a reader that fell behind reads again."""


def stream_fact(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the fact of a request that streams.

    Args:
        options: The `stream_options` of its caller; unknown names have no effect.
    """
    return {FACT: ",".join(name for name in STREAM_OPTIONS if options.get(name))}


def stream_options(facts: Mapping[str, str]) -> dict[str, bool] | None:
    """Return the true `stream_options` of a request; None if it does not stream."""
    value = facts.get(FACT)
    if value is None:
        return None
    return {name: True for name in STREAM_OPTIONS if name in value.split(",")}


class Append(NamedTuple):
    """One entry to append.

    Attributes:
        claimed: The request, as its worker claimed it.
        number: Number of the entry in this delivery, from 1.
        events: Whole server-sent events, each with the blank line at its end.
        ending: How the stream ends with this entry; "" while more events follow.
    """

    claimed: Claimed
    number: int
    events: bytes
    ending: str


class Entry(NamedTuple):
    """One entry of a stream.

    Attributes:
        delivery: Delivery that appended it.
        number: Number of the entry in this delivery, from 1.
        events: Whole server-sent events.
        ending: `succeeded`, `failed`, `stream_too_long` or `stream_too_slow` in the last entry of a
            delivery; "" in the others.
    """

    delivery: int
    number: int
    events: bytes
    ending: str

    @property
    def position(self) -> str:
        """The entry's id; readers go on after it."""
        return f"{self.delivery}-{self.number}"


class EventStreams:
    """The streams of one queue.

    Args:
        redis: A client that does not decode.
        keys: The keys of the queue.
        scripts: The scripts of the queue.
    """

    def __init__(self, redis: AnyRedis, keys: Keys, scripts: ScriptRunner) -> None:
        self._redis: Any = redis
        self._keys = keys
        self._scripts = scripts

    async def append(
        self, worker: str, appends: Sequence[Append], ttl_ms: int, max_bytes: int
    ) -> list[int]:
        """Append entries, at most 128 a call.

        Args:
            worker: The worker that holds the requests.
            appends: The entries; several of one request in their order.
            ttl_ms: Milliseconds for which Redis keeps each stream from now on.
            max_bytes: Most bytes of the events of one request.

        Returns:
            A code for each: 1 appended; 2 the stream would be too long, and its last entry says so;
                3 the stream has entries that no worker of this delivery wrote; 0 the worker does
                not hold the request.

        Raises:
            RedisFull: Redis is at its `maxmemory`.
        """
        values: list[str | int | bytes] = []
        for claimed, number, events, ending in appends:
            values += (claimed.id, claimed.fence, number, events, ending)
        codes: list[int] = await self._scripts.run(
            "append_events", worker, ttl_ms, max_bytes, *values
        )
        return codes

    async def read(self, positions: Mapping[str, str]) -> dict[str, list[Entry]]:
        """Return the next entries of several streams, at most `ENTRIES_A_READ` of each; do not wait.

        Args:
            positions: Id of a request -> position after which to read.
        """
        after = {self._keys.events(name): position for name, position in positions.items()}
        reply = await self._redis.xread(after, count=ENTRIES_A_READ)
        streams = reply.items() if isinstance(reply, dict) else reply
        return {self._keys.parse(key)[1]: _entries(found) for key, found in streams}

    async def rest(self, request_id: str, position: str = START) -> list[Entry]:
        """Return all entries of a stream after a position; none if there is no such stream."""
        return _entries(await self._redis.xrange(self._keys.events(request_id), f"({position}"))


def _entries(found: Sequence[Any]) -> list[Entry]:
    return [_entry(name.decode(), fields) for name, fields in found]


def _entry(name: str, fields: Mapping[bytes, bytes]) -> Entry:
    """Return an entry; one that no worker wrote has no events."""
    delivery, _, number = name.partition("-")
    ending = fields.get(b"end", b"").decode(errors="replace")
    return Entry(int(delivery), int(number), fields.get(b"events", b""), ending)

"""Streams for the tests of the gateway: what a worker appends, and how a client reads it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import orjson
from queues import claim, open_worker

from gristmill.shared.event_streams import Append
from gristmill.shared.operations import Settlement
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.shared.results import response_outcome

TEXT_PATH, CHAT_PATH = "/v1/completions", "/v1/chat/completions"
TEXT = {"model": "stub", "prompt": "one two", "max_tokens": 3, "stream": True}
CHAT = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 3, "stream": True}


def chunk(text: str, reason: str | None = None, answer_id: str = "cmpl-1") -> bytes:
    """Return an event with a part of the text of a completion."""
    choice = {"index": 0, "text": text, "finish_reason": reason}
    fields = {"id": answer_id, "object": "text_completion", "choices": [choice]}
    return b"data: " + orjson.dumps(fields) + b"\n\n"


def whole(text: str) -> bytes:
    """Return the whole answer of a completion."""
    choice = {"index": 0, "text": text, "finish_reason": "stop"}
    usage = {"prompt_tokens": 2, "completion_tokens": 3}
    fields = {"id": "cmpl-w", "object": "text_completion", "choices": [choice], "usage": usage}
    return orjson.dumps(fields)


@dataclass
class Holder:
    """A worker that holds one request, as the test moves it."""

    queue: Queue
    name: str
    item: Claimed
    number: int = 0

    async def append(self, *events: bytes, ending: str = "") -> None:
        self.number += 1
        append = Append(self.item, self.number, b"".join(events), ending)
        assert await self.queue.events.append(self.name, [append], 60_000, 10**6) in ([1], [2])

    async def succeed(self, text: str) -> None:
        await self._ack("succeeded", 200, whole(text))

    async def fail(self, status: int, message: str) -> None:
        await self._ack(
            "failed", status, orjson.dumps({"error": {"message": message, "code": status}})
        )

    async def give_back(self) -> None:
        await self.queue.release(self.name, [self.item])

    async def _ack(self, status: Any, code: int, body: bytes) -> None:
        outcome = response_outcome(self.item.attempt, self.name, code, body)
        item = self.item
        settlement = Settlement(item.id, item.delivery, status, outcome, fence=item.fence)
        assert await self.queue.ack(self.name, [settlement]) == [1]


async def holder(queue: Queue) -> Holder:
    """Claim the only request, once it is there."""
    name = await open_worker(queue, f"w-{uuid4().hex[:8]}")
    while not (items := await claim(queue, name, 1)):
        await asyncio.sleep(0.01)
    return Holder(queue, name, items[0])


@dataclass
class Received:
    """What a client has got of a stream."""

    response: httpx.Response
    ids: list[str] = field(default_factory=list)
    data: list[Any] = field(default_factory=list)
    comments: int = 0
    is_done: bool = False

    @property
    def text(self) -> str:
        choices = [choice for event in self.data for choice in event.get("choices", [])]
        return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.data[-1]["error"]
        return error

    async def read(self, num_events: int = 10**6) -> "Received":
        """Read events until so many have come in all, or to the end."""
        while len(self.data) < num_events and not self.is_done:
            try:
                line = await anext(self._lines)
            except StopAsyncIteration:
                break
            if line.startswith("id: "):
                self.ids.append(line[4:])
            elif line.startswith(":"):
                self.comments += 1
            elif line == "data: [DONE]":
                self.is_done = True
            elif line.startswith("data: "):
                self.data.append(orjson.loads(line[6:]))
        return self

    def __post_init__(self) -> None:
        self._lines = self.response.aiter_lines()


@asynccontextmanager
async def streaming(
    api: httpx.AsyncClient, path: str = TEXT_PATH, body: Any = None, **headers: str
) -> AsyncIterator[Received]:
    """Call for a stream, for the length of a block; then hang up. The block begins with the answer's head."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with api.stream("POST", path, json=body or TEXT, headers=named) as response:
        yield Received(response)

"""A TCP proxy between one process and Redis, which can hurt the connection at a chosen point.

It reads RESP, so it knows which verb of the queue each script is, and it has one client process, so it
knows who speaks. A `Trap` waits for a point: the n-th time that a verb is asked for or answered.
"""

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

import hiredis

from gristmill.shared.scripts import VERBS, script_source
from gristmill.shared.tasks import end

Phase = Literal["asked", "answered"]
Fate = Literal["pass", "swallow"]

CHUNK = 1 << 16
VERB_OF = {hashlib.sha1(script_source(verb).encode()).hexdigest(): verb for verb in VERBS}  # noqa: S324  # Redis names scripts so


@dataclass
class Trap:
    """Springs once, at a point.

    Attributes:
        verb: Of the queue, or a Redis command in lower case.
        phase: `asked`: before the server sees it. `answered`: the server has run it, the client does not know.
        nth: Which occurrence, from 1.
        spring: What happens; it says whether the message passes or is swallowed and the connection cut.
    """

    verb: str
    phase: Phase
    nth: int
    spring: Callable[[], Awaitable[Fate]]
    has_sprung: bool = False

    async def meet(self, verb: str, phase: Phase) -> Fate:
        """Look at a message that comes by."""
        if self.has_sprung or (verb, phase) != (self.verb, self.phase):
            return "pass"
        self.nth -= 1
        if self.nth > 0:
            return "pass"
        self.has_sprung = True
        return await self.spring()


class Proxy:
    """Stands before the Redis on a port; open it with `async with`.

    Attributes:
        port: Where it listens.
        traps: What waits for its moment.
        delay_s: Added to every answer.
        flows: Cleared, nothing passes in either direction while connections stay open: half-open.
    """

    def __init__(self, redis_port: int) -> None:
        self._redis_port = redis_port
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0
        self.traps: list[Trap] = []
        self.delay_s = 0.0
        self.flows = asyncio.Event()
        self.flows.set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self.cut()

    @property
    def url(self) -> str:
        """What the process is told."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def cut(self) -> None:
        """Close every connection."""
        await end(*self._connections)

    def slow_down(self, delay_s: float) -> None:
        """Answer later from now on."""
        self.delay_s = delay_s

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(serving)
        serving.add_done_callback(self._connections.discard)
        # Not in the task: one that is cancelled before its first step closes nothing.
        serving.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._redis_port)
            asked: deque[str] = deque()
            pumps = [
                asyncio.create_task(_until_broken(self._pump_requests(reader, up_writer, asked))),
                asyncio.create_task(_until_broken(self._pump_answers(up_reader, writer, asked))),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                up_writer.transport.abort()  # before all that can be cancelled
                writer.transport.abort()
                await end(*pumps)

    async def _pump_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: deque[str]
    ) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(CHUNK):
            parser.feed(data)
            while (command := parser.gets()) is not False:
                verb = _verb(command)
                if await self._meet(verb, "asked") == "swallow":
                    return
                asked.append(verb)
                await self.flows.wait()
                writer.write(hiredis.pack_command(tuple(command)))
            await writer.drain()

    async def _pump_answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: deque[str]
    ) -> None:
        parser = hiredis.Reader()
        held = b""
        while data := await reader.read(CHUNK):
            parser.feed(data)
            held += data
            has_answer = False
            while parser.gets() is not False:
                has_answer = True
                verb = asked.popleft() if asked else "push"
                if await self._meet(verb, "answered") == "swallow":
                    return
            if has_answer:
                await asyncio.sleep(self.delay_s)
                await self.flows.wait()
                writer.write(held)
                await writer.drain()
                held = b""

    async def _meet(self, verb: str, phase: Phase) -> Fate:
        for trap in self.traps:
            if await trap.meet(verb, phase) == "swallow":
                return "swallow"
        return "pass"


async def _until_broken(pump: Coroutine[Any, Any, None]) -> None:
    """Pump until an end closes, however it does."""
    with contextlib.suppress(OSError):
        await pump


def _verb(command: list[bytes]) -> str:
    name = command[0].decode().lower()
    return VERB_OF.get(command[1].decode(), name) if name == "evalsha" else name

"""Let a group of requests enter EngineCore together, so that it prefills them in one step.

vLLM's OpenAI layer needs 0.5 ms of Python for a request. Without the gate, the requests of a group
trickle into EngineCore over several steps, and each of these steps prefills. `building.py` puts the
gate in front of EngineCore, and `in_process.py` announces each group.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

HOLD_S = 0.25
"""Most seconds that a request waits for the others of its group, some of which may be refused."""


class StartGate:
    """Holds requests back until their group is complete.

    Args:
        send: Sends a request to EngineCore.
    """

    def __init__(self, send: Callable[[Any], Awaitable[None]]) -> None:
        self._send = send
        self._num_missing = 0
        self._is_open = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, number: int) -> None:
        """Close the gate until `number` requests have come, at most `HOLD_S`.

        A group that is still held back enters now.
        """
        self._open()
        self._num_missing, self._is_open = number, asyncio.Event()
        self._timer = asyncio.get_running_loop().call_later(HOLD_S, self._open)

    async def add(self, request: Any) -> None:
        """Send a request to EngineCore, once its group is complete."""
        if self._num_missing:
            self._num_missing -= 1
            if self._num_missing:
                await self._is_open.wait()
            else:
                self._open()
        await self._send(request)

    def _open(self) -> None:
        self._num_missing = 0
        self._is_open.set()
        if self._timer:
            self._timer.cancel()
            self._timer = None


def put_gate(engine: Any) -> StartGate:
    """Put a gate in front of the EngineCore of an AsyncLLM, and return it."""
    gate = StartGate(engine.engine_core.add_request_async)
    engine.engine_core.add_request_async = gate.add
    return gate

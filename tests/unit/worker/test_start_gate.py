"""Test that a group enters EngineCore together, and that nobody waits for a request that never comes."""

import asyncio
import contextlib

import pytest

from gristmill.worker.engine.vllm import start_gate
from gristmill.worker.engine.vllm.start_gate import StartGate


class Core:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    async def send(self, request: int) -> None:
        self.sent.append(request)


async def turn() -> None:
    """Let every task that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_alone_enters_at_once() -> None:
    core = Core()
    await StartGate(core.send).add(1)
    assert core.sent == [1]


async def test_a_group_enters_when_the_last_has_come() -> None:
    core = Core()
    gate = StartGate(core.send)
    gate.expect(3)
    first = [asyncio.create_task(gate.add(number)) for number in (1, 2)]
    await turn()
    assert core.sent == []
    await gate.add(3)
    await asyncio.gather(*first)
    assert sorted(core.sent) == [1, 2, 3]
    await gate.add(4)
    assert core.sent[-1] == 4


async def test_a_group_does_not_wait_for_a_refused_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_gate, "HOLD_S", 0.01)
    core = Core()
    gate = StartGate(core.send)
    gate.expect(3)
    await asyncio.gather(gate.add(1), gate.add(2))
    assert sorted(core.sent) == [1, 2]
    await gate.add(4)
    assert core.sent[-1] == 4


async def test_the_next_group_lets_the_one_before_in() -> None:
    core = Core()
    gate = StartGate(core.send)
    gate.expect(2)
    held = asyncio.create_task(gate.add(1))
    await turn()
    gate.expect(2)
    await held
    assert core.sent == [1]


async def test_an_aborted_request_is_not_sent() -> None:
    core = Core()
    gate = StartGate(core.send)
    gate.expect(2)
    held = asyncio.create_task(gate.add(1))
    await turn()
    held.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await held
    await gate.add(2)
    assert core.sent == [2]

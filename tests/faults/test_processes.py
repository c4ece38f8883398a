"""The suite's own engine: a culprit dies, whatever the loop did before."""

import asyncio
import time

import orjson
import pytest
from faults.processes import KILLS_ENGINE, TOKEN_S, FaultyEngine

from gristmill.shared.errors import EngineDied

ENDPOINT = "/v1/completions"


def body(prompt: str, max_tokens: int) -> bytes:
    return orjson.dumps({"prompt": prompt, "max_tokens": max_tokens})


async def test_a_culprit_dies_also_after_a_stall_of_the_loop() -> None:
    """The stub makes up for the steps of the stall in an instant, which the culprit must not use to be answered."""
    engine = FaultyEngine()
    await engine.start()
    neighbour = asyncio.create_task(engine.post(ENDPOINT, body("plain 1", 10_000)))
    await asyncio.sleep(TOKEN_S)
    time.sleep(50 * TOKEN_S)  # noqa: ASYNC251  # the stall
    with pytest.raises(EngineDied):
        await engine.post(ENDPOINT, body(f"{KILLS_ENGINE} 2", 20))
    with pytest.raises(EngineDied):
        await neighbour

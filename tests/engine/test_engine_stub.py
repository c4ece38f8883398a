"""The stub answers what is known beforehand, and dies when told to."""

import asyncio
import json

import pytest

from gristmill.shared.errors import EngineDied
from gristmill.worker.engine import StubEngine

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "one two"}], "max_tokens": 3}).encode()


async def test_stub_repeats_the_words_of_the_prompt() -> None:
    engine = StubEngine()
    info = await engine.start()
    response = await engine.post(CHAT, BODY)
    assert json.loads(response.body)["choices"][0]["message"]["content"] == "one two one"
    assert (response.prompt_tokens, response.output_tokens) == (2, 3)
    assert info.transport == "stub"
    assert engine.stats().output_tokens == 3


async def test_stub_fails_what_is_in_flight_when_it_dies_and_starts_anew() -> None:
    engine = StubEngine(token_delay_s=1000)
    await engine.start()
    posted = asyncio.create_task(engine.post(CHAT, BODY))
    while engine.stats().running == 0:
        await asyncio.sleep(0)
    engine.die()
    with pytest.raises(EngineDied):
        await posted
    with pytest.raises(EngineDied):
        await engine.check(1)
    assert engine.stats().running == 0
    await engine.start()
    await engine.check(1)


async def test_stub_refuses_a_stream_like_the_others() -> None:
    engine = StubEngine()
    await engine.start()
    assert (await engine.post(CHAT, b'{"stream": true}')).status == 400

"""Test which prompts are large, and that these take turns until the engine has their tokens."""

import asyncio
import json
from typing import Any

import pytest

from gristmill.worker.engine.vllm.large_prompts import LARGE_CHARS, LargePrompts, text_chars
from gristmill.worker.engine.vllm.trace import Trace

LONG = "x" * (LARGE_CHARS + 1)
LARGE = json.dumps({"prompt": LONG}).encode()


def chat(*parts: dict[str, Any]) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()


@pytest.mark.parametrize(
    ("body", "is_large"),
    [
        (LARGE, True),
        (b'{"prompt":"short"}', False),
        (json.dumps({"prompt": [LONG[:1000]] * 70}).encode(), True),
        (json.dumps({"prompt": [1] * LARGE_CHARS}).encode(), False),  # tokens already
        (chat({"type": "text", "text": LONG}), True),
        (chat({"type": "image_url", "image_url": {"url": "data:" + LONG}}), False),
        (json.dumps({"tools": [{"type": "image_url", "x": LONG}]}).encode(), True),
        (b'{"temperature":NaN,' + LARGE[1:], True),
        (b"[" * 900 + b'"' + LONG.encode() + b'"' + b"]" * 900, True),
    ],
)
def test_text_makes_a_prompt_large_and_media_do_not(body: bytes, is_large: bool) -> None:
    assert (text_chars(body) > LARGE_CHARS) is is_large


async def test_large_prompts_take_turns_and_small_ones_pass() -> None:
    prompts, order = LargePrompts(), list[str]()
    tokenized, answered = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        trace = Trace()
        async with prompts.turn(LARGE, trace):
            await tokenized.wait()
            trace.on_tokens()
            order.append("first tokenized")
            await answered.wait()
            order.append("first answered")

    async def other(name: str, body: bytes) -> None:
        async with prompts.turn(body, Trace()):
            order.append(name)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(first())
        second = tasks.create_task(other("second", LARGE))
        await tasks.create_task(other("small", b"{}"))
        tokenized.set()
        await second
        answered.set()
    assert order == ["small", "first tokenized", "second", "first answered"]


async def test_turn_passes_on_when_its_request_ends_early() -> None:
    prompts = LargePrompts()
    with pytest.raises(ValueError, match="refused"):
        async with prompts.turn(LARGE, Trace()):
            raise ValueError("refused")
    async with prompts.turn(LARGE, Trace()):
        pass

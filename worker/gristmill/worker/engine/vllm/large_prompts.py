"""Let vLLM tokenize one large prompt at a time; `in_process.py` calls this for each request.

vLLM tokenizes in a small pool of threads, first come first served, and 15 MB of text take 14 s. With
two threads (`compat.widen_renderer`) and one large prompt at a time, small prompts never wait for it.
"""

import contextlib
from asyncio import Semaphore
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson

from gristmill.worker.engine.vllm.trace import Trace

LARGE_CHARS = 65_536
"""Characters of text above which a prompt is large; vLLM tokenizes so many in about 60 ms."""

_MEDIA = frozenset(("image_url", "video_url", "audio_url", "input_audio"))
"""Types of content parts that are not tokenized."""


class LargePrompts:
    """Makes large prompts of one engine take turns."""

    def __init__(self) -> None:
        self._turn = Semaphore(1)

    @contextlib.asynccontextmanager
    async def turn(self, body: bytes, trace: Trace) -> AsyncIterator[None]:
        """Wait for the turn of a large prompt; a small one needs none.

        The turn ends when the engine gets the tokens, or with the block.

        Args:
            body: The request's body, of any bytes.
            trace: Trace of the request; the wrapped engine tells it when the tokens come.
        """
        with contextlib.ExitStack() as held:
            if text_chars(body) > LARGE_CHARS:
                await self._turn.acquire()
                held.callback(self._turn.release)
                trace.on_tokens = held.close
            yield


def text_chars(body: bytes) -> int:
    """Return how many characters of a body vLLM may tokenize; 0 for a body too short to be large.

    Args:
        body: The request's body. One that is no strict JSON counts by its bytes.
    """
    if len(body) <= LARGE_CHARS:
        return 0
    try:
        fields = orjson.loads(body)
    except ValueError:  # vLLM also reads NaN
        return len(body)
    num_chars, values = 0, [_without_media(fields)]
    while values:  # not by recursion, because bodies nest deeply
        value = values.pop()
        if isinstance(value, str):
            num_chars += len(value)
        elif isinstance(value, list):
            values.extend(value)
        elif isinstance(value, dict):
            values.extend(value.values())
    return num_chars


def _without_media(fields: Any) -> Any:
    """Return the fields without the images, sounds and videos among the parts of messages."""
    messages = fields.get("messages") if isinstance(fields, dict) else None
    if not isinstance(messages, list):
        return fields
    return fields | {"messages": [_text_of(message) for message in messages]}


def _text_of(message: Any) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    return [part for part in content if not (isinstance(part, dict) and part.get("type") in _MEDIA)]

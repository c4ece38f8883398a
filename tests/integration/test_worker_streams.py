"""A worker streams: its events reach Redis before the result, and only for requests that ask."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from queues import a_request, fresh_queue
from workers import local_worker, settings_for

from gristmill.shared.event_streams import Entry, stream_fact
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import CHAT, Request
from gristmill.shared.results import Result
from gristmill.worker import event_buffers
from gristmill.worker.engine import StubEngine

WORDS = "one two three four five"


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=10_000)) as queue:
        yield queue


def streamed(request_id: str, max_tokens: int = 5, **fields: Any) -> Request:
    body = orjson.dumps({"prompt": f"{request_id} {WORDS}", "max_tokens": max_tokens})
    return a_request(request_id, body=body, **({"facts": stream_fact({})} | fields))


async def result_of(queue: Queue, request_id: str) -> Result:
    while (result := (await queue.results([request_id]))[0]) is None:
        await asyncio.sleep(0.005)
    return result


def chunks_of(entries: list[Entry]) -> list[dict[str, Any]]:
    blocks = b"".join(entry.events for entry in entries).split(b"\n\n")
    assert blocks.pop() == b""
    return [orjson.loads(block.removeprefix(b"data: ")) for block in blocks]


def text_of(entries: list[Entry]) -> str:
    return "".join(chunk["choices"][0]["text"] for chunk in chunks_of(entries))


async def test_all_events_are_in_redis_before_the_result(redis_url: str, queue: Queue) -> None:
    async with local_worker(settings_for(redis_url, queue), StubEngine(token_delay_s=0.02)):
        await queue.submit([streamed("a", 12), streamed("b", 12), streamed("whole", facts={})])
        for name in ("a", "b"):
            result = await result_of(queue, name)
            entries = await queue.events.rest(name)
            assert text_of(entries) == result.text == f"{name} {WORDS} {name} {WORDS}"
            assert len(entries) > 1  # not all at the end
            assert [entry.ending for entry in entries if entry.ending] == ["succeeded"]
            assert [entry.number for entry in entries] == [*range(1, len(entries) + 1)]
            assert result.tokens == (6, 12)
            assert 0 < await queue.redis.pttl(queue.keys.events(name)) <= 600_000
        await result_of(queue, "whole")
        assert not await queue.redis.exists(queue.keys.events("whole"))


async def test_usage_is_an_event_only_if_the_caller_asks(redis_url: str, queue: Queue) -> None:
    async with local_worker(settings_for(redis_url, queue), StubEngine()):
        asking = stream_fact({"include_usage": True})
        await queue.submit([streamed("asks", facts=asking), streamed("not")])
        assert (await result_of(queue, "asks")).tokens == (6, 5)
        assert (await result_of(queue, "not")).tokens == (6, 5)
    assert chunks_of(await queue.events.rest("asks"))[-1]["usage"]["total_tokens"] == 11
    assert all(chunk["choices"] for chunk in chunks_of(await queue.events.rest("not")))


async def test_body_that_asks_for_a_stream_without_the_fact_is_refused(
    redis_url: str, queue: Queue
) -> None:
    async with local_worker(settings_for(redis_url, queue), StubEngine()):
        await queue.submit([a_request("r", body=b'{"prompt":"a","stream":true}')])
        assert (await result_of(queue, "r")).status_code == 400
    assert not await queue.redis.exists(queue.keys.events("r"))


async def test_refused_request_has_no_stream(redis_url: str, queue: Queue) -> None:
    async with local_worker(settings_for(redis_url, queue), StubEngine()):
        await queue.submit([streamed("r", max_tokens=-1)])
        assert (await result_of(queue, "r")).status_code == 400
    assert not await queue.redis.exists(queue.keys.events("r"))


async def test_stream_that_outgrows_its_cap_ends_and_the_request_runs_on(
    redis_url: str, queue: Queue
) -> None:
    settings = settings_for(redis_url, queue, max_stream_bytes=2000)
    async with local_worker(settings, StubEngine(token_delay_s=0.005)):
        await queue.submit([streamed("r", max_tokens=60)])
        result = await result_of(queue, "r")
    entries = await queue.events.rest("r")
    assert result.tokens[1] == 60
    assert entries[-1].ending == "stream_too_long"
    assert sum(len(entry.events) for entry in entries) <= 2000
    assert (result.text or "").startswith(text_of(entries))


async def test_stream_that_redis_takes_too_slowly_ends_by_name(
    redis_url: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_buffers, "MAX_BUFFERED_BYTES", 1000)
    async with local_worker(settings_for(redis_url, queue), StubEngine()):
        await queue.submit([streamed("r", max_tokens=60)])  # all at once: more than may wait
        result = await result_of(queue, "r")
    (entry,) = await queue.events.rest("r")
    assert (entry.events, entry.ending) == (b"", "stream_too_slow")
    assert result.tokens[1] == 60


async def test_engine_that_dies_leaves_the_stream_to_the_next_delivery(
    redis_url: str, queue: Queue
) -> None:
    engine = StubEngine(token_delay_s=0.02)
    async with local_worker(settings_for(redis_url, queue), engine):
        await queue.submit([streamed("r", max_tokens=20)])
        while not await queue.events.rest("r"):
            await asyncio.sleep(0.005)
        engine.die()
        result = await result_of(queue, "r")
    entries = await queue.events.rest("r")
    assert {entry.delivery for entry in entries} == {1, 2}
    assert [(entry.delivery, entry.ending) for entry in entries if entry.ending] == [
        (2, "succeeded")
    ]
    assert text_of([entry for entry in entries if entry.delivery == 2]) == result.text
    assert (result.text or "").startswith(
        text_of([entry for entry in entries if entry.delivery == 1])
    )


async def test_chat_streams_too(redis_url: str, queue: Queue) -> None:
    body = orjson.dumps({"messages": [{"role": "user", "content": WORDS}], "max_tokens": 3})
    async with local_worker(settings_for(redis_url, queue), StubEngine()):
        await queue.submit([a_request("r", body=body, endpoint=CHAT, facts=stream_fact({}))])
        result = await result_of(queue, "r")
    chunks = chunks_of(await queue.events.rest("r"))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta["content"] for delta in deltas) == result.text == "one two three"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}

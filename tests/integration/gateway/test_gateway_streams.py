"""Streams of live requests: order, redelivery, resumption, ends and clients that go away."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
from gateways import RunningGateway, gateway_settings, problem, running_gateway
from queues import claimed_by
from streams import (
    CHAT,
    CHAT_PATH,
    TEXT,
    TEXT_PATH,
    Holder,
    Received,
    chunk,
    holder,
    streaming,
    whole,
)
from workers import local_worker, settings_for

from gristmill.producer.gateway import live_stream
from gristmill.producer.gateway.routes_live import REQUEST_ID
from gristmill.producer.gateway.sent_text import SentText
from gristmill.producer.gateway.stream_reader import StreamReader
from gristmill.shared.event_streams import Append, stream_fact
from gristmill.shared.queue import Queue
from gristmill.worker.engine import StubEngine


async def received(api: httpx.AsyncClient, **headers: str) -> Received:
    async with streaming(api, **headers) as stream:
        return await stream.read()


async def begun(api: httpx.AsyncClient, queue: Queue, **headers: str) -> tuple[Any, Holder]:
    """Call, and return the call and the worker that holds its request."""
    return asyncio.create_task(received(api, **headers)), await holder(queue)


# -- the answer --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
async def test_openais_client_streams(gateway: RunningGateway, key: str) -> None:
    async with gateway.openai(key) as client:
        chat = await client.chat.completions.create(
            model="stub",
            messages=[{"role": "user", "content": "one two"}],
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [each async for each in chat]
        assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "one two one two"
        assert chunks[-2].choices[0].finish_reason == "length"
        assert chunks[-1].usage
        assert chunks[-1].usage.total_tokens == 6
        texts = await client.completions.create(model="stub", prompt="a", max_tokens=2, stream=True)
        assert "".join([each.choices[0].text async for each in texts]) == "a a"
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="none", prompt="a", stream=True)


async def test_events_come_in_order_with_ids_while_the_engine_generates(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    working = asyncio.create_task(holder(queue))
    async with asyncio.TaskGroup() as group:

        async def work() -> Holder:
            worker = await working
            await worker.append(chunk("one"), chunk(" two"))
            return worker

        appended = group.create_task(work())
        async with streaming(api) as stream:
            assert stream.response.headers["Content-Type"].startswith("text/event-stream")
            assert stream.response.headers[REQUEST_ID].startswith("acme.")
            await stream.read(2)
            worker = await appended
            await worker.append(chunk(" one", "length"), ending="succeeded")
            await worker.succeed("one two one")
            await stream.read()
    assert stream.text == "one two one"
    assert stream.ids == ["1-1.1", "1-1.2", "1-2.1"]
    assert stream.is_done


@pytest.mark.usefixtures("worker")
async def test_error_before_the_first_event_has_its_status(api: httpx.AsyncClient) -> None:
    answer = await api.post(TEXT_PATH, json=TEXT | {"max_tokens": -1})
    assert (answer.status_code, answer.headers["Content-Type"]) == (400, "application/json")
    for wrong in ({"stream": "yes"}, {"stream_options": [1]}):
        answer = await api.post(TEXT_PATH, json=TEXT | wrong)
        assert (answer.status_code, problem(answer)["param"]) == (400, *wrong)
    answer = await api.post("/v1/embeddings", json={"input": "x", "stream": True})
    assert (answer.status_code, problem(answer)["param"]) == (400, "stream")
    answer = await api.post("/v1/requests", json=TEXT)
    assert answer.status_code == 400


async def test_failure_after_the_first_event_is_an_event(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    call, worker = await begun(api, queue)
    await worker.append(chunk("one"))
    await worker.append(ending="failed")
    await worker.fail(500, "boom")
    stream = await call
    assert (stream.text, stream.error["message"], stream.is_done) == ("one", "boom", False)
    assert stream.error["request_id"] == worker.item.id


@pytest.mark.parametrize("name", ["stream_too_long", "stream_too_slow"])
async def test_stream_over_a_bound_ends_by_name(
    api: httpx.AsyncClient, queue: Queue, name: str
) -> None:
    call, worker = await begun(api, queue)
    await worker.append(chunk("one"), ending=name)
    stream = await call
    assert (stream.text, stream.error["code"]) == ("one", name)
    assert worker.item.id in stream.error["message"]


async def test_time_limit_is_an_error_with_the_id(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    settings = gateway_settings(redis_url, queue, tmp_path, gateway_live_timeout_s=1)
    async with running_gateway(settings) as gateway, gateway.caller() as api:
        call, worker = await begun(api, queue)
        await worker.append(chunk("one"))
        stream = await call
        answer = await api.post(TEXT_PATH, json=TEXT)
        assert (answer.status_code, problem(answer)["code"]) == (504, "timeout")
    assert (stream.text, stream.error["code"]) == ("one", "timeout")
    assert worker.item.id in stream.error["message"]


async def test_comments_keep_the_connection_open(
    api: httpx.AsyncClient, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_stream, "KEEP_ALIVE_S", 0.05)
    async with streaming(api) as stream:  # the first comment begins the answer
        worker = await holder(queue)
        await worker.fail(400, "wrong")
        await stream.read()
    assert stream.comments > 0
    assert stream.error["message"] == "wrong"


# -- a worker that knows no streams, or whose stream is lost ----------------------------------------------


async def test_answer_of_an_older_worker_is_one_chunk(api: httpx.AsyncClient, queue: Queue) -> None:
    call, worker = await begun(api, queue)
    assert "stream" not in orjson.loads(worker.item.record.body)
    await worker.succeed("one two one")
    stream = await call
    assert (len(stream.data), stream.text, stream.is_done) == (1, "one two one", True)
    assert stream.data[0]["choices"][0]["finish_reason"] == "stop"


async def test_openais_client_reads_the_chat_of_an_older_worker(
    gateway: RunningGateway, key: str, queue: Queue, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gristmill.worker.in_flight.STREAMED", ())
    async with (
        local_worker(settings_for(redis_url, queue), StubEngine()),
        gateway.openai(key) as client,
    ):
        chat = await client.chat.completions.create(
            model="stub",
            messages=[{"role": "user", "content": "one two"}],
            max_tokens=3,
            stream=True,
            stream_options={"include_usage": True},
        )
        first, last = [each async for each in chat]
    assert (first.choices[0].delta.content, first.choices[0].delta.role) == (
        "one two one",
        "assistant",
    )
    assert first.object == "chat.completion.chunk"
    assert last.usage
    assert last.usage.completion_tokens == 3


async def test_rest_of_a_stream_that_breaks_off_comes_from_the_result(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    call, worker = await begun(api, queue)
    await worker.append(chunk("one"), chunk(" t"))
    await worker.succeed("one two one")
    stream = await call
    assert [event["choices"][0]["text"] for event in stream.data] == ["one", " t", "wo one"]
    assert {event["id"] for event in stream.data} == {"cmpl-1"}
    assert stream.is_done


async def test_result_that_differs_from_what_was_sent_interrupts(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    call, worker = await begun(api, queue)
    await worker.append(chunk("one"))
    await worker.succeed("another")
    stream = await call
    assert (stream.text, stream.error["code"], stream.is_done) == (
        "one",
        "stream_interrupted",
        False,
    )


# -- redelivery ----------------------------------------------------------------------------------------


async def test_identical_text_of_the_next_delivery_is_suppressed(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    call, first = await begun(api, queue)
    await first.append(chunk("one"), chunk(" tw"))
    await first.give_back()
    second = await holder(queue)
    await second.append(chunk("on", answer_id="cmpl-2"), chunk("e ", answer_id="cmpl-2"))
    await second.append(chunk("two", answer_id="cmpl-2"), chunk(" one", "length", "cmpl-2"), ending="succeeded")  # fmt: skip
    stream = await call
    assert [event["choices"][0]["text"] for event in stream.data] == ["one", " tw", "o", " one"]
    assert stream.ids == ["1-1.1", "1-1.2", "2-2.1", "2-2.2"]
    assert {event["id"] for event in stream.data} == {"cmpl-1"}
    assert stream.is_done


@pytest.mark.parametrize("events", [[chunk("on"), chunk("ly")], [chunk("o", "stop")]])
async def test_other_text_of_the_next_delivery_interrupts_and_names_the_result(
    api: httpx.AsyncClient, queue: Queue, events: list[bytes]
) -> None:
    call, first = await begun(api, queue)
    await first.append(chunk("one"))
    await first.give_back()
    second = await holder(queue)
    await second.append(*events)
    stream = await call
    assert (stream.text, stream.error["code"], stream.is_done) == (
        "one",
        "stream_interrupted",
        False,
    )
    assert stream.error["request_id"] == second.item.id
    await second.succeed("only")
    found = await api.get(f"/v1/requests/{second.item.id}")
    assert found.json()["response"]["body"] == orjson.loads(whole("only"))


# -- resumption and clients that go away ---------------------------------------------------------------------


@pytest.mark.parametrize("bad", [b"event: message\ndata: {}", b'data: {"choices":[7]}'])
async def test_event_that_cannot_be_read_interrupts_after_what_came_before(
    api: httpx.AsyncClient, queue: Queue, bad: bytes
) -> None:
    call, worker = await begun(api, queue)
    await worker.append(chunk("one"), bad + b"\n\n", chunk(" two"))
    stream = await call
    assert stream.text == "one"
    assert stream.error["code"] == "stream_interrupted"
    assert worker.item.id in stream.error["message"]


async def test_stream_that_redis_refuses_ends_only_its_own_calls(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 5, facts=stream_fact({}))
    appends = [Append(item, 1, b"data: x\n\n", "") for item in items]
    await queue.events.append("w", appends, 60_000, 1000)
    await queue.redis.set(queue.keys.events(items[3].id), b"mine")
    reader, num_woken = StreamReader(queue), asyncio.Semaphore(0)
    try:
        followings = [reader.follow(item.id, num_woken.release) for item in items]
        for _ in items:
            await num_woken.acquire()
        assert [each.error is None for each in followings] == [True, True, True, False, True]
        assert [len(each.take()) for each in followings] == [1, 1, 1, 0, 1]
    finally:
        await reader.aclose()


async def test_other_calls_have_turns_while_an_ended_stream_is_repeated(
    api: httpx.AsyncClient, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, worker = await begun(api, queue, Idempotency_Key="k")
    for _ in range(20):
        await worker.append(chunk("a"))
    await worker.append(ending="succeeded")
    await worker.succeed("a" * 20)
    await call
    turns, seen = list[None](), list[int]()
    pass_on = SentText.pass_on

    def counted(self: SentText, delivery: int, event: bytes) -> bytes | None:
        seen.append(len(turns))
        asyncio.get_running_loop().call_soon(turns.append, None)
        return pass_on(self, delivery, event)

    monkeypatch.setattr(SentText, "pass_on", counted)
    assert (await received(api, Idempotency_Key="k")).text == "a" * 20
    assert seen == list(range(20))


async def test_client_comes_back_and_resumes_after_an_event(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    key = {"Idempotency_Key": "mine"}
    calling = asyncio.create_task(holder(queue))
    async with asyncio.TaskGroup() as group:

        async def work() -> None:
            await (await calling).append(chunk("one"), chunk(" two"), chunk(" on"))

        group.create_task(work())
        async with streaming(api, **key) as stream:
            await stream.read(1)
    worker = await calling
    (event_id,) = stream.ids[:1]
    again = asyncio.create_task(received(api, Last_Event_ID=event_id, **key))
    await worker.append(chunk("e", "length"), ending="succeeded")
    resumed = await again
    assert (resumed.text, resumed.is_done) == (" two one", True)
    from_start = await received(api, **key)
    assert (from_start.text, from_start.is_done) == ("one two one", True)
    await worker.succeed("one two one")
    assert (await received(api, Last_Event_ID="1-2.1", **key)).text == ""
    assert (await received(api, **key)).text == "one two one"


async def test_resumption_knows_what_an_earlier_delivery_sent(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    key = {"Idempotency_Key": "mine"}
    call, first = await begun(api, queue, **key)
    await first.append(chunk("one"), chunk(" two"))
    await first.give_back()
    second = await holder(queue)
    await second.append(chunk("one two"), chunk(" one", "length"), ending="succeeded")
    assert (await call).text == "one two one"
    assert (await received(api, Last_Event_ID="1-1.1", **key)).text == " two one"
    assert (await received(api, Last_Event_ID="1-1.2", **key)).text == " one"


async def test_expired_stream_cannot_be_resumed_but_answers_from_the_start(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    key = {"Idempotency-Key": "mine"}
    call, worker = await begun(api, queue, Idempotency_Key="mine")
    await worker.append(chunk("one", "stop"), ending="succeeded")
    await worker.succeed("one")
    await call
    await queue.redis.unlink(queue.keys.events(worker.item.id))
    answer = await api.post(TEXT_PATH, json=TEXT, headers=key | {"Last-Event-ID": "1-1.1"})
    assert (answer.status_code, problem(answer)["code"]) == (404, "stream_expired")
    assert (await received(api, Idempotency_Key="mine")).text == "one"


async def test_last_event_id_needs_a_key(api: httpx.AsyncClient) -> None:
    answer = await api.post(TEXT_PATH, json=TEXT, headers={"Last-Event-ID": "1-1.1"})
    assert (answer.status_code, problem(answer)["param"]) == (400, "Last-Event-ID")


@pytest.mark.parametrize("key", [None, "mine"])
@pytest.mark.parametrize("has_begun", [False, True])
async def test_hanging_up_cancels_unless_there_is_a_key(
    api: httpx.AsyncClient, queue: Queue, key: str | None, has_begun: bool
) -> None:
    headers = {"Idempotency_Key": key} if key else {}
    call = asyncio.create_task(received(api, **headers))
    worker = await holder(queue)
    if has_begun:
        await worker.append(chunk("one"))
        await asyncio.sleep(0.2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    if key is None:
        while (await queue.results([worker.item.id]))[0] is None:
            await asyncio.sleep(0.01)
        (result,) = await queue.results([worker.item.id])
        assert result
        assert result.status == "cancelled"
    else:
        again = asyncio.create_task(received(api, **headers))
        await worker.append(chunk(" two", "stop"), ending="succeeded")
        assert (await again).text.endswith(" two")


async def test_repeat_without_stream_gets_the_whole_answer_of_the_same_request(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    call, worker = await begun(api, queue, Idempotency_Key="mine")
    await worker.append(chunk("one", "stop"), ending="succeeded")
    await worker.succeed("one")
    await call
    body = {name: value for name, value in TEXT.items() if name != "stream"}
    answer = await api.post(TEXT_PATH, json=body, headers={"Idempotency-Key": "mine"})
    assert answer.json()["choices"][0]["text"] == "one"


async def test_two_calls_of_one_key_each_get_all(api: httpx.AsyncClient, queue: Queue) -> None:
    call, worker = await begun(api, queue, Idempotency_Key="mine")
    await worker.append(chunk("one"))
    other = asyncio.create_task(received(api, Idempotency_Key="mine"))
    await worker.append(chunk(" two"))
    await worker.append(chunk(" one", "stop"), ending="succeeded")
    assert (await call).text == (await other).text == "one two one"


# -- the Responses API ----------------------------------------------------------------------------------


async def test_stream_of_the_responses_api_has_its_events_and_no_done(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    body = {"model": "stub", "input": "hi", "stream": True}
    call = asyncio.create_task(api.post("/v1/responses", json=body))
    worker = await holder(queue)
    event = b'event: response.completed\ndata: {"type":"response.completed"}\n\n'
    await worker.append(event, ending="succeeded")
    assert (await call).content == b"id: 1-1.1\n" + event


def response_events(number: int, *parts: str, text: str = "") -> list[bytes]:
    """Return the events of a response as vLLM makes them in one delivery, with other ids and another time each.

    Args:
        number: Number of the delivery.
        parts: Parts of the text.
        text: The whole text, if the response ends.
    """
    response = {"id": f"resp_{number}", "created_at": 1000 + number, "status": "in_progress"}
    item = {"id": f"msg_{number}", "type": "message"}
    place = {"item_id": f"msg_{number}", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": {"text": ""}},
        *({"type": "response.output_text.delta", **place, "delta": part} for part in parts),
    ]
    if text:
        done = response | {"status": "completed", "output": [item | {"text": text}]}
        events += [
            {"type": "response.output_text.done", **place, "text": text},
            {"type": "response.content_part.done", **place, "part": {"text": text}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": done},
        ]
    return [
        b"event: %s\ndata: %s\n\n"
        % (event["type"].encode(), orjson.dumps(event | {"sequence_number": n}))
        for n, event in enumerate(events)
    ]


@pytest.mark.parametrize("how", ["events", "result"])
async def test_response_that_is_computed_again_goes_on_with_its_ids_and_numbers(
    api: httpx.AsyncClient, queue: Queue, how: str
) -> None:
    body = {"model": "stub", "input": "hi", "stream": True}
    call = asyncio.create_task(api.post("/v1/responses", json=body))
    first = await holder(queue)
    await first.append(*response_events(1, "one", " tw"))
    await first.give_back()
    second = await holder(queue)
    if how == "events":
        events = response_events(2, "o", "ne two", " three", text="one two three")
        await second.append(*events[:5])
        await second.append(*events[5:], ending="succeeded")
    else:
        part = {"type": "output_text", "text": "one two three"}
        item = {"id": "msg_2", "type": "message", "content": [part]}
        response = {"id": "resp_2", "created_at": 1002, "status": "completed", "output": [item]}
        await second._ack("succeeded", 200, orjson.dumps(response))
    text = (await call).text
    got = [orjson.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")]
    assert [event["sequence_number"] for event in got] == [*range(len(got))]
    assert "".join(event.get("delta", "") for event in got) == "one two three"
    assert got[-1]["response"]["status"] == "completed"
    assert "_2" not in text
    assert "1002" not in text


async def test_response_with_another_text_is_interrupted(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    body = {"model": "stub", "input": "hi", "stream": True}
    call = asyncio.create_task(api.post("/v1/responses", json=body))
    first = await holder(queue)
    await first.append(*response_events(1, "one"))
    await first.give_back()
    second = await holder(queue)
    await second.append(*response_events(2, "other"))
    assert '"code":"stream_interrupted"' in (await call).text


async def test_response_of_an_older_worker_becomes_events(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    part = {"type": "output_text", "text": "hello", "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": [part]}
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": [item]}
    call = asyncio.create_task(
        api.post("/v1/responses", json={"model": "stub", "input": "hi", "stream": True})
    )
    worker = await holder(queue)
    await worker._ack("succeeded", 200, orjson.dumps(response))
    blocks = [block.split(b"\n") for block in (await call).content.split(b"\n\n")[:-1]]
    events = [orjson.loads(data.removeprefix(b"data: ")) for _, _, data in blocks]
    names = [name.removeprefix(b"event: ").decode() for _, name, _ in blocks]
    assert names == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert (
        "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == "hello"
    )
    assert events[-1]["response"] == response


# -- the true worker ------------------------------------------------------------------------------------


async def test_engine_that_dies_in_mid_stream_is_not_seen_by_the_client(
    redis_url: str, queue: Queue, api: httpx.AsyncClient
) -> None:
    engine = StubEngine(token_delay_s=0.02)
    async with (
        local_worker(settings_for(redis_url, queue), engine),
        streaming(api, CHAT_PATH, CHAT | {"max_tokens": 30}) as stream,
    ):
        await stream.read(3)
        engine.die()
        await stream.read()
    words = stream.text.split(" ")
    assert words == ["one", "two"] * 15
    assert stream.is_done
    assert {event_id.split("-")[0] for event_id in stream.ids} == {"1", "2"}

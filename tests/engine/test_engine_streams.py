"""Test that a streamed answer has the text of the whole one, on every transport, and that events come as vLLM sends them."""

import asyncio
import json
from typing import Any

import aiohttp
import orjson
import pytest
from engine_bodies import NAMED, TOOL, body_of, settled

from gristmill.producer.gateway.sent_events import SentEvents
from gristmill.worker.engine import Engine, InProcessEngine, RemoteEngine, Response

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ONE_CALL = {"tools": [TOOL], "parallel_tool_calls": False, "max_tokens": 200}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"max_tokens": 60}),
    "two choices": (CHAT, {"n": 2, "temperature": 0.9}),
    "logprobs": (CHAT, {"logprobs": True, "top_logprobs": 3}),
    "named tool": (CHAT, ONE_CALL | {"tool_choice": NAMED}),
    "required tool": (CHAT, ONE_CALL | {"tool_choice": "required"}),
    "completion": (COMPLETIONS, {"prompt": "one", "max_tokens": 60}),
    "two prompts": (COMPLETIONS, {"prompt": ["one", "two"], "n": 2, "temperature": 0.9}),
    "logprobs of a completion": (COMPLETIONS, {"prompt": "one", "logprobs": 2, "echo": True}),
    "responses": (RESPONSES, {"input": "hello", "max_output_tokens": 6}),
}


OF_ONE_KIND = {"prompt_logprobs", "prompt_token_ids"}
"""Fields that vLLM has only in a whole answer, or only in a stream."""


def comparable(value: Any) -> Any:
    """Return an answer without nulls, and with the arguments of tool calls parsed: vLLM writes their blanks anew."""
    if isinstance(value, dict):
        return {
            key: json.loads(each) if key == "arguments" else comparable(each)
            for key, each in value.items()
            if each is not None and key not in OF_ONE_KIND
        }
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return value


def streamed_body(fields: dict[str, Any]) -> bytes:
    return body_of(fields | {"stream": True})


async def streamed(engine: Engine, endpoint: str, body: bytes) -> tuple[Response, list[bytes]]:
    events: list[bytes] = []
    return await engine.post(endpoint, body, on_event=events.append), events


def data_of(event: bytes) -> dict[str, Any]:
    (line,) = [line for line in event.split(b"\n") if line.startswith(b"data: ")]
    fields: dict[str, Any] = json.loads(line[6:])
    return fields


def text_of(events: list[bytes]) -> str:
    """Return the text of the first choice, of tool calls the arguments."""
    text = ""
    for fields in map(data_of, events):
        if fields.get("type") == "response.output_text.delta":
            text += fields["delta"]
        for choice in fields.get("choices", []):
            delta = choice.get("delta", {})
            calls = [
                call["function"].get("arguments") or "" for call in delta.get("tool_calls", [])
            ]
            part = choice.get("text", delta.get("content")) or "".join(calls)
            text += part if choice["index"] == 0 else ""
    return text


def text_in(body: dict[str, Any]) -> str:
    if "output" in body:
        return str(body["output"][0]["content"][0]["text"])
    choice = body["choices"][0]
    message = choice.get("message", {})
    calls = [call["function"]["arguments"] for call in message.get("tool_calls", [])]
    return str(choice.get("text", message.get("content")) or "".join(calls))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("transport", ["in_process", "remote"])
async def test_streamed_answer_is_the_whole_answer(
    engine: InProcessEngine, remote: RemoteEngine, transport: str, case: str
) -> None:
    endpoint, fields = CASES[case]
    chosen: Engine = engine if transport == "in_process" else remote
    whole = await chosen.post(endpoint, body_of(fields))
    response, events = await streamed(chosen, endpoint, streamed_body(fields))
    ours, theirs = json.loads(response.body), json.loads(whole.body)
    assert comparable(settled(ours)) == comparable(settled(theirs))
    assert text_of(events) == text_in(ours) != ""
    facts = ("status", "prompt_tokens", "output_tokens", "finish_reason", "model")
    assert [getattr(response, name) for name in facts] == [getattr(whole, name) for name in facts]
    if transport == "in_process" and endpoint != RESPONSES:
        assert response.ttft_s is not None


@pytest.mark.parametrize("case", ["chat", "completion", "responses"])
async def test_events_are_those_of_vllm_serve(
    engine: InProcessEngine, remote: RemoteEngine, server_url: str, case: str
) -> None:
    await remote.check(30)  # the server is up
    endpoint, fields = CASES[case]
    options = {} if endpoint == RESPONSES else {"stream_options": {"include_usage": True}}
    body = streamed_body(fields | options)
    _, events = await streamed(engine, endpoint, body)
    headers = {"content-type": "application/json"}
    async with (
        aiohttp.ClientSession(server_url, headers=headers) as session,
        session.post(endpoint, data=body) as reply,
    ):
        blocks = (await reply.read()).split(b"\n\n")
    theirs = [block + b"\n\n" for block in blocks if block and block != b"data: [DONE]"]
    assert shapes_of(events) == shapes_of(theirs)
    assert text_of(events) == text_of(theirs) != ""


def shapes_of(events: list[bytes]) -> list[tuple[bytes, Any]]:
    """Return the events without their texts; of several alike in a row only one, since chunks may have several tokens."""
    shapes = [(event.partition(b"data: ")[0], blanked(data_of(event))) for event in events]
    return [
        shape for number, shape in enumerate(shapes) if number == 0 or shape != shapes[number - 1]
    ]


TEXTS = {"content", "text", "delta"}
OF_CHANCE = {"id", "created", "created_at", "item_id", "sequence_number"}


def blanked(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in OF_CHANCE}
        return {
            key: blanked(each)
            for key, each in kept.items()
            if not (key in TEXTS and isinstance(each, str))
        }
    if isinstance(value, list):
        return [blanked(each) for each in value]
    return value


@pytest.mark.parametrize("transport", ["in_process", "remote"])
async def test_usage_is_an_event_only_if_the_caller_asks(
    engine: InProcessEngine, remote: RemoteEngine, transport: str
) -> None:
    chosen: Engine = engine if transport == "in_process" else remote
    asking = {"stream_options": {"include_usage": True}}
    _, events = await streamed(chosen, CHAT, streamed_body(asking))
    assert data_of(events[-1])["usage"]["completion_tokens"] == 6
    response, events = await streamed(chosen, CHAT, streamed_body({}))
    assert all("usage" not in data_of(event) for event in events)
    assert response.output_tokens == 6


@pytest.mark.parametrize("transport", ["in_process", "remote"])
@pytest.mark.parametrize(
    "fields", [{"model": "nobody"}, {"temperature": -1}, {"messages": None}, {"max_tokens": "x"}]
)
async def test_refusal_has_no_events(
    engine: InProcessEngine, remote: RemoteEngine, transport: str, fields: dict[str, Any]
) -> None:
    chosen: Engine = engine if transport == "in_process" else remote
    whole = await chosen.post(CHAT, body_of(fields))
    response, events = await streamed(chosen, CHAT, streamed_body(fields))
    assert events == []
    assert (response.status, response.status >= 400) == (whole.status, True)


async def test_cancelled_stream_is_aborted_in_the_engine(engine: InProcessEngine) -> None:
    has_begun = asyncio.Event()
    body = streamed_body({"max_tokens": 400, "ignore_eos": True})
    posted = asyncio.create_task(engine.post(CHAT, body, on_event=lambda _: has_begun.set()))
    await has_begun.wait()
    posted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await posted
    processor = engine._core.engine.output_processor  # type: ignore[union-attr]
    assert not processor.request_states


async def test_a_response_that_is_computed_again_goes_on_wherever_it_broke_off(
    in_process: tuple[InProcessEngine, Any],
) -> None:
    body = streamed_body({"input": "hello", "max_output_tokens": 12, "temperature": 0})
    (_, first), (answer, second) = [await streamed(in_process[0], RESPONSES, body) for _ in range(2)]  # fmt: skip
    names = [data_of(events[0])["response"]["id"] for events in (first, second)]
    assert names[0] != names[1]
    whole = orjson.loads(answer.body)
    for number in range(1, len(first)):
        for how in ("events", "answer"):
            sent = SentEvents()
            got = [sent.pass_on(1, event) for event in first[:number]]
            if how == "events":
                got += [sent.pass_on(2, event) for event in second]
            else:
                got += sent.rest_of(whole, shows_usage=False)
            events = [data_of(event) for event in got if event]
            assert not sent.is_behind
            assert [event["sequence_number"] for event in events] == [*range(len(events))]
            text = "".join(event.get("delta", "") for event in events)
            assert text == "".join(data_of(event).get("delta", "") for event in first)
            assert events[-1]["type"] == "response.completed"
            assert {event["response"]["id"] for event in events if "response" in event} == {
                names[0]
            }

"""Test that a request gets the same answer in process and over HTTP, field by field."""

import json
from typing import Any

import pytest
from engine_bodies import NAMED, SCHEMA, TOOL, body_of, settled
from models import MAX_MODEL_LEN

from gristmill.producer.batches.lifecycle.body_check import body_check_of
from gristmill.shared.body_schemas import schema_of
from gristmill.shared.request import Request
from gristmill.worker.engine import EngineInfo, InProcessEngine, RemoteEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}

ANSWERED: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (CHAT, {}),
    "two choices": (CHAT, {"n": 2, "temperature": 0.9}),
    "logprobs": (CHAT, {"logprobs": True, "top_logprobs": 3}),
    "json schema": (CHAT, {"response_format": FORMAT, "max_tokens": 200}),
    "named tool": (CHAT, {"tools": [TOOL], "tool_choice": NAMED, "max_tokens": 200}),
    "required tool": (CHAT, {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200}),
    "completion": (COMPLETIONS, {"prompt": ["one", "two"], "logprobs": 2, "echo": True}),
    "float for int": (CHAT, {"max_tokens": 4.0}),
    "responses": ("/v1/responses", {"input": "hello", "max_output_tokens": 6}),
    "messages": ("/v1/messages", {}),
    "texts for numbers": (
        CHAT,
        {"max_tokens": " 5 ", "temperature": "0.5", "n": True, "logprobs": "yes"},
    ),
    "no content": (CHAT, {"messages": [{"role": "user"}], "unknown_field": {"a": [1]}}),
    "parts": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "stop": None},
    ),
    "tokenize": ("/tokenize", {"prompt": "hello"}),
}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown model": (CHAT, {"model": "nobody"}),
    "temperature": (CHAT, {"temperature": -1}),
    "type": (CHAT, {"max_tokens": "x"}),
    "no messages": (CHAT, {"messages": None}),
    "bad role": (CHAT, {"messages": [{"content": "x"}]}),
    "bad schema": (CHAT, {"response_format": {"type": "json_schema"}}),
    "too many choices": (CHAT, {"n": 0}),
    "long chat": (CHAT, {"messages": [{"role": "user", "content": "x " * MAX_MODEL_LEN}]}),
    "too long": (COMPLETIONS, {"prompt": [7] * (MAX_MODEL_LEN + 1)}),
    "too many tokens": (CHAT, {"max_tokens": MAX_MODEL_LEN * 2}),
    "token ids": (COMPLETIONS, {"prompt": [999_999]}),
    "nan": (CHAT, {"temperature": float("nan")}),
    "stream": (CHAT, {"stream": True}),
    "not served": ("/v1/embeddings", {"input": "x"}),
    "responses type": ("/v1/responses", {"input": 5}),
}


@pytest.mark.parametrize("case", [*ANSWERED, *REFUSED])
async def test_both_transports_give_the_same_answer(
    engine: InProcessEngine, remote: RemoteEngine, case: str
) -> None:
    endpoint, fields = (ANSWERED | REFUSED)[case]
    ours = await engine.post(endpoint, body_of(fields))
    theirs = await remote.post(endpoint, body_of(fields))
    assert settled(json.loads(ours.body)) == settled(json.loads(theirs.body))
    assert list(json.loads(ours.body)) == list(json.loads(theirs.body))
    assert ours.status == theirs.status
    assert (ours.status == 200) is (case in ANSWERED)
    assert ours.output_tokens == theirs.output_tokens
    assert ours.finish_reason == theirs.finish_reason


@pytest.mark.parametrize("choice", [NAMED, "required"])
async def test_tool_choice_makes_a_tool_call(engine: InProcessEngine, choice: Any) -> None:
    fields = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    body = body_of(fields | {"max_tokens": 200})
    message = json.loads((await engine.post(CHAT, body)).body)["choices"][0]["message"]
    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert set(arguments) == {"city", "ok"}


async def test_both_transports_serve_the_same(info: EngineInfo, remote_info: EngineInfo) -> None:
    assert info.models == remote_info.models
    assert info.endpoints == remote_info.endpoints
    assert info.max_model_len == remote_info.max_model_len
    assert info.vllm_version == remote_info.vllm_version
    for endpoint in ("/v1/chat/completions", "/v1/completions"):
        for described in (info, remote_info):
            text = described.body_schemas["body_schemas"].encode()
            assert schema_of(text, endpoint), endpoint


UNFIT = {"type", "no messages", "bad role", "responses type"}
"""Cases of `REFUSED` whose body does not fit the schema; the engine finds the others by itself."""


@pytest.mark.parametrize("case", sorted({*ANSWERED, *UNFIT}))
async def test_the_published_schemas_refuse_only_what_the_engine_refuses(
    info: EngineInfo, case: str
) -> None:
    endpoint, fields = (ANSWERED | REFUSED)[case]
    schema = schema_of(info.body_schemas["body_schemas"].encode(), endpoint)
    assert schema
    check = body_check_of([schema])
    assert check
    request = Request(id="a", body=body_of(fields), endpoint=endpoint)
    assert (check.problem(request, is_described=True) is None) is (case in ANSWERED)


async def test_check_passes_on_both(engine: InProcessEngine, remote: RemoteEngine) -> None:
    await engine.check(30)
    await remote.check(30)

"""The answers of a true engine, through a worker and the gateway, against the types of OpenAI's client.

`tests/integration/gateway/test_openai_contract.py` does the same for files, batches and models.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateways import gateway_settings, running_gateway
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from openai.types.shared import ErrorObject
from openai_types import Comparison
from queues import fresh_queue
from workers import local_worker, settings_for

from gristmill.worker.engine import Engine, InProcessEngine, RemoteEngine

pytestmark = pytest.mark.long

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "ok": {"type": "boolean"}},
    "required": ["city", "ok"],
    "additionalProperties": False,
}
LOGPROBS = "message.output_text.logprobs"
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
FLAT_TOOL = {
    "type": "function",
    "name": "look_up",
    "parameters": SCHEMA,
    "description": "A town.",
    "strict": True,
}
TEXT = {
    "format": {
        "type": "json_schema",
        "name": "place",
        "schema": SCHEMA,
        "description": "A town.",
        "strict": True,
    }
}

ASKED: list[tuple[str, type, dict[str, Any]]] = [
    (CHAT, ChatCompletion, {"messages": MESSAGES}),
    (CHAT, ChatCompletion, {"messages": MESSAGES, "n": 2, "logprobs": True, "top_logprobs": 2}),
    (CHAT, ChatCompletion, {"messages": MESSAGES, "response_format": FORMAT, "max_tokens": 200}),
    (CHAT, ChatCompletion, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200}),
    (COMPLETIONS, Completion, {"prompt": "hello"}),
    (COMPLETIONS, Completion, {"prompt": ["one", "two"], "logprobs": 2}),
    (RESPONSES, Response, {"input": "hello", "instructions": "Be brief.", "metadata": {"a": "b"}, "user": "u"}),
    (RESPONSES, Response, {"input": "hello", "max_output_tokens": 6, "top_logprobs": 2, "include": [LOGPROBS]}),
    (RESPONSES, Response, {"input": "hello", "text": TEXT, "max_output_tokens": 200, "truncation": "auto"}),
    (RESPONSES, Response, {"input": "hello", "tools": [FLAT_TOOL], "tool_choice": "required", "max_output_tokens": 200}),
]  # fmt: skip

ADDED = {
    "chat_completion.ChatCompletion": "ec_transfer_params kv_transfer_params metrics prompt_logprobs prompt_text prompt_token_ids",
    "chat_completion.Choice": "routed_experts stop_reason token_ids",
    "chat_completion_chunk.ChatCompletionChunk": "prompt_text prompt_token_ids",
    "chat_completion_chunk.Choice": "stop_reason token_ids",
    "chat_completion_message.ChatCompletionMessage": "reasoning",
    "completion.Completion": "ec_transfer_params kv_transfer_params metrics service_tier",
    "completion_choice.CompletionChoice": "prompt_logprobs prompt_token_ids routed_experts stop_reason token_ids",
    "create_embedding_response.CreateEmbeddingResponse": "created id",
    "create_embedding_response.Usage": "completion_tokens completion_tokens_details prompt_tokens_details",
    "response.Response": "ec_transfer_params frequency_penalty input_messages kv_transfer_params output_messages presence_penalty",
    "response_usage.InputTokensDetails": "cached_tokens_per_turn input_tokens_per_turn",
    "response_usage.OutputTokensDetails": "output_tokens_per_turn tool_output_tokens tool_output_tokens_per_turn",
}  # fmt: skip
"""Type -> fields that vLLM adds."""

NOT_SENT = {
    "of OpenAI's own services, which no engine has": {
        "chat_completion.ChatCompletion": "moderation service_tier",
        "chat_completion_chunk.ChatCompletionChunk": "moderation obfuscation service_tier",
        "chat_completion_chunk.ChoiceDelta": "audio",
        "chat_completion_message.ChatCompletionMessage": "annotations audio",
        "function_tool.FunctionTool": "allowed_callers async defer_loading",
        "response.Response": "access_programs image input_transformations moderation prompt prompt_cache_diagnostics"
        " prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier tool_usage",
        "response_usage.InputTokensDetails": "cache_write_tokens_details",
    },
    "of state that a gateway does not keep": {
        "chat_completion.ChatCompletion": "metadata",
        "response.Response": "conversation previous_response_id",
    },
    "of refusals, which an open model writes as text": {
        "chat_completion.ChoiceLogprobs": "refusal",
        "chat_completion_chunk.ChoiceDelta": "refusal",
        "chat_completion_chunk.ChoiceLogprobs": "refusal",
        "chat_completion_message.ChatCompletionMessage": "refusal",
    },
    "deprecated by OpenAI": {
        "chat_completion_chunk.ChoiceDelta": "function_call",
        "chat_completion_message.ChatCompletionMessage": "function_call",
    },
    "only with flags of vLLM, or models, that this engine lacks": {
        "completion_usage.CompletionUsage": "completion_tokens_details prompt_tokens_details",
        "response.Response": "reasoning",
        "response_output_message.ResponseOutputMessage": "phase",
    },
    "not in vLLM": {
        "function_tool.FunctionTool": "output_schema",
        "response.Response": "completed_at error max_tool_calls",
        "response_text_config.ResponseTextConfig": "verbosity",
    },
}  # fmt: skip
"""Reason -> type -> fields of the client's types that no answer here has."""

ADDITIONS = {f"{kind}.{name}" for kind, names in ADDED.items() for name in names.split()}
NEVER_SENT = {
    f"{kind}.{name}" for kinds in NOT_SENT.values() for kind, names in kinds.items() for name in names.split()
}  # fmt: skip


@asynccontextmanager
async def serving(redis_url: str, engine: Engine, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Run a gateway and a worker with an engine; yields a caller."""
    async with fresh_queue(redis_url) as queue:
        try:
            async with (
                local_worker(settings_for(redis_url, queue), engine),
                running_gateway(gateway_settings(redis_url, queue, folder)) as gateway,
                gateway.caller() as api,
            ):
                yield api
        finally:
            await engine.close()


def check(found: Comparison) -> None:
    """Check that each field is right, and that the others are the listed ones."""
    assert found.wrong == []
    assert sorted(found.extra - ADDITIONS) == []
    assert sorted(found.never_sent - NEVER_SENT) == []
    assert sorted(found.sent & NEVER_SENT) == []


async def test_answers_of_the_engine_have_the_types_of_the_client(
    redis_url: str, server_url: str, tmp_path: Path
) -> None:
    found = Comparison()
    engine = RemoteEngine(server_url, max_num_seqs=8, start_timeout_s=240)
    async with serving(redis_url, engine, tmp_path) as api:
        for path, kind, fields in ASKED:
            limit = {} if path == RESPONSES else {"max_tokens": 6}
            body = {"model": "tiny", "seed": 7, "temperature": 0.5} | limit | fields
            answer = await api.post(path, json=body, timeout=120)
            assert answer.status_code == 200, answer.text
            found.add(answer.json(), kind, path)
        refused = await api.post(CHAT, json={"model": "tiny", "messages": MESSAGES, "n": -1})
    check(found)
    errors = Comparison()
    errors.add(refused.json()["error"], ErrorObject)
    assert errors.wrong == ["code: '400' is no str"]  # vLLM sends the status as a number


STREAMED: list[tuple[str, Any, dict[str, Any]]] = [
    (CHAT, ChatCompletionChunk, {"messages": MESSAGES, "stream_options": {"include_usage": True}}),
    (CHAT, ChatCompletionChunk, {"messages": MESSAGES, "n": 2, "logprobs": True, "top_logprobs": 2}),
    (CHAT, ChatCompletionChunk, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200}),
    (COMPLETIONS, Completion, {"prompt": "hello", "logprobs": 2, "stream_options": {"include_usage": True}}),
]  # fmt: skip


async def events_of(api: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    """Return the events of a streamed answer, which end with `[DONE]`."""
    async with api.stream("POST", path, json=body | {"stream": True}, timeout=120) as answer:
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_chunks_of_a_stream_have_the_types_of_the_client(
    redis_url: str, server_url: str, tmp_path: Path
) -> None:
    found = Comparison()
    engine = RemoteEngine(server_url, max_num_seqs=8, start_timeout_s=240)
    async with serving(redis_url, engine, tmp_path) as api:
        for path, kind, fields in STREAMED:
            body = {"model": "tiny", "seed": 7, "temperature": 0.5, "max_tokens": 6} | fields
            events = await events_of(api, path, body)
            assert events
            for event in events:
                found.add(event, kind, path)
    # Before its last event, OpenAI's API says null here too, which the type of its client forbids.
    unended = f"{COMPLETIONS}.choices[0].finish_reason: 'None' is no Literal"
    assert unended in found.wrong
    found.wrong = [line for line in found.wrong if line != unended]
    check(found)


async def test_embeddings_have_the_types_of_the_client(
    redis_url: str, argv: list[str], tmp_path: Path
) -> None:
    found = Comparison()
    common = argv[: argv.index("--enable-auto-tool-choice")]
    engine = InProcessEngine([*common, "--runner", "pooling", "--convert", "embed"])
    async with serving(redis_url, engine, tmp_path) as api:
        for inputs in ("one", ["one", "two"]):
            body = {"model": "tiny", "input": inputs}
            answer = await api.post("/v1/embeddings", json=body, timeout=120)
            found.add(answer.json(), CreateEmbeddingResponse)
    check(found)


async def test_first_token_of_an_echo_has_no_probability(
    redis_url: str, server_url: str, tmp_path: Path
) -> None:
    """OpenAI's API said null there too, which the type of its client forbids."""
    found = Comparison()
    engine = RemoteEngine(server_url, max_num_seqs=8, start_timeout_s=240)
    async with serving(redis_url, engine, tmp_path) as api:
        body = {"model": "tiny", "prompt": "one", "logprobs": 2, "echo": True, "max_tokens": 3}
        found.add((await api.post(COMPLETIONS, json=body, timeout=120)).json(), Completion)
    assert found.wrong == [
        "choices[0].logprobs.token_logprobs[0]: 'None' is no float",
        "choices[0].logprobs.top_logprobs[0]: 'None' is no dict",
    ]

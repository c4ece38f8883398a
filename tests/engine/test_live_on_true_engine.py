"""Test that live requests get what `vllm serve` answers, field by field, also through OpenAI's client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
import pytest_asyncio
from gateways import RunningGateway, gateway_settings, running_gateway
from workers import TRUE, worker_process

from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.worker.engine import RemoteEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHANCE = {"id", "created", "created_at", "request_id"}
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "ok": {"type": "boolean"}},
    "required": ["city", "ok"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}

ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 2}),
    "schema": (CHAT, {"messages": HELLO, "response_format": FORMAT, "max_tokens": 200}),
    "tool": (CHAT, {"messages": HELLO, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200}),
    "completion": (COMPLETIONS, {"prompt": ["one", "two"], "logprobs": 2, "echo": True}),
    "response": (RESPONSES, {"input": "hello", "max_output_tokens": 6, "max_tokens": None}),
    "wrong": (CHAT, {"messages": HELLO, "temperature": -1}),
    "too long": (COMPLETIONS, {"prompt": [7] * 3000}),
}  # fmt: skip


@asynccontextmanager
async def serving(redis_url: str, folder: Path, argv: list[str]) -> AsyncIterator[RunningGateway]:
    """Run a gateway and a worker with a true engine for the length of a block."""
    redis = connect(redis_url)
    queue = Queue(redis, f"test-{uuid4().hex[:12]}", Limits(lease_ms=3000))
    async with (
        running_gateway(gateway_settings(redis_url, queue, folder / "storage")) as gateway,
        worker_process(TRUE, redis_url, queue, folder / "log", ["--", *argv], OMP_NUM_THREADS="1"),
    ):
        yield gateway
    await redis.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(
    redis_url: str, argv: list[str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningGateway]:
    async with serving(redis_url, tmp_path_factory.mktemp("live"), argv) as gateway:
        yield gateway


def settled(value: Any) -> Any:
    """Return the value without the fields that differ from call to call."""
    if isinstance(value, dict):
        return {key: settled(each) for key, each in value.items() if key not in CHANCE}
    if isinstance(value, list):
        return [settled(each) for each in value]
    return value


@pytest.mark.parametrize("case", ASKED)
async def test_the_answer_is_that_of_vllm_serve(
    remote: RemoteEngine, gateway: RunningGateway, case: str
) -> None:
    path, fields = ASKED[case]
    body = orjson.dumps({"model": "tiny", "max_tokens": 6, "seed": 7, "temperature": 0} | fields)
    async with gateway.caller() as api:
        answer = await api.post(path, content=body, timeout=120)
    expected = await remote.post(path, body)
    assert answer.status_code == expected.status
    assert settled(answer.json()) == settled(orjson.loads(expected.body))
    assert list(answer.json()) == list(orjson.loads(expected.body))


async def test_openais_client_gets_objects_of_its_own_types(gateway: RunningGateway) -> None:
    async with gateway.openai() as opened:
        client: Any = opened  # it takes plain dicts, its types do not
        common: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 200}
        chat = await client.chat.completions.create(**common, response_format=FORMAT)
        assert set(orjson.loads(chat.choices[0].message.content)) == {"city", "ok"}
        chat = await client.chat.completions.create(**common, tools=[TOOL], tool_choice="required")
        assert chat.choices[0].message.tool_calls
        answer = await client.responses.create(model="tiny", input="hello", max_output_tokens=6)
        assert answer.output_text
        assert [model.id async for model in client.models.list()] == ["tiny"]


@pytest.mark.long
async def test_embeddings_are_the_same_as_base64_and_as_numbers(
    redis_url: str, argv: list[str], tmp_path: Path
) -> None:
    common = argv[: argv.index("--enable-auto-tool-choice")]
    pooling = [*common, "--runner", "pooling", "--convert", "embed"]
    async with (
        serving(redis_url, tmp_path, pooling) as gateway,
        gateway.openai() as client,
        gateway.caller() as api,
    ):
        answer = await client.embeddings.create(model="tiny", input=["one", "two"])
        assert [len(each.embedding) for each in answer.data] == [64, 64]
        plain = await api.post("/v1/embeddings", json={"model": "tiny", "input": ["one", "two"]})
        for each, numbers in zip(answer.data, plain.json()["data"], strict=True):
            assert each.embedding == pytest.approx(numbers["embedding"])
        score = await api.post("/v1/score", json={"text_1": "one", "text_2": ["one", "two"]})
        assert [row["index"] for row in score.json()["data"]] == [0, 1]
        ranked = await api.post("/v1/rerank", json={"query": "one", "documents": ["one", "two"]})
        assert len(ranked.json()["results"]) == 2

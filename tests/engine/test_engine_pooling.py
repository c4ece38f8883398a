"""Test a pooling model: embeddings on the hot path, all else through the application."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gristmill.worker.engine import EngineInfo, InProcessEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

Started = tuple[InProcessEngine, EngineInfo]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pooling(argv: list[str]) -> AsyncIterator[Started]:
    common = argv[: argv.index("--enable-auto-tool-choice")]
    engine = InProcessEngine([*common, "--runner", "pooling", "--convert", "embed"])
    yield engine, await engine.start()
    await engine.close()


async def post(pooling: Started, endpoint: str, **fields: Any) -> Any:
    body = json.dumps({"model": "tiny"} | fields).encode()
    response = await pooling[0].post(endpoint, body)
    assert response.status == 200, response.body
    assert response.prompt_tokens > 0
    return json.loads(response.body)


async def test_embeddings_have_a_vector_for_each_input(pooling: Started) -> None:
    fields = await post(pooling, "/v1/embeddings", input=["one", "two"])
    assert [len(each["embedding"]) for each in fields["data"]] == [64, 64]


async def test_embeddings_are_refused_in_vllms_words(pooling: Started) -> None:
    response = await pooling[0].post("/v1/embeddings", b'{"model": "tiny", "input": {"a": 1}}')
    assert response.status == 400
    assert "input" in json.loads(response.body)["error"]["message"]


async def test_priority_is_accepted(pooling: Started) -> None:
    body = b'{"model": "tiny", "input": "one"}'
    for endpoint in ("/v1/embeddings", "/pooling"):
        assert (await pooling[0].post(endpoint, body, priority=3)).status == 200


async def test_score_compares_two_texts(pooling: Started) -> None:
    fields = await post(pooling, "/score", text_1="one", text_2=["one", "two"])
    assert fields["data"][0]["score"] > fields["data"][1]["score"]


async def test_rerank_sorts_documents(pooling: Started) -> None:
    fields = await post(pooling, "/rerank", query="one", documents=["two", "one"])
    assert [each["index"] for each in fields["results"]] == [1, 0]


async def test_pooling_returns_data(pooling: Started) -> None:
    assert len((await post(pooling, "/pooling", input="one"))["data"]) == 1


async def test_only_what_the_model_can_do_is_served(pooling: Started) -> None:
    engine, info = pooling
    assert {"/v1/embeddings", "/score", "/rerank", "/pooling"} <= set(info.endpoints)
    assert not {"/v1/chat/completions", "/classify"} & set(info.endpoints)
    assert (await engine.post("/v1/chat/completions", b"{}")).status == 404

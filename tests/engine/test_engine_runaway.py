"""Test the runaway guard on a real engine: a runaway request ends with the text it has."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from gristmill.worker.engine import InProcessEngine, Response, RunLimits
from gristmill.worker.engine.vllm import runaway

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_TOKENS = 1900
MAX_REPEATED_TOKENS = 256
ONE_TOKEN_FOREVER = {"logit_bias": {"65": 100}}


@asynccontextmanager
async def engine_with(limits: RunLimits, argv: list[str]) -> AsyncIterator[InProcessEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runaway, "CHECK_S", 0.1)  # the tiny model writes 2,000 tokens in a second
        engine = InProcessEngine(argv, limits)
        await engine.start()
        yield engine
        await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def strict_engine(argv: list[str]) -> AsyncIterator[InProcessEngine]:
    """Start an engine with a limit of one second a request, which is met first on any machine."""
    async with engine_with(RunLimits(max_request_s=1, max_repeated_tokens=0), argv) as engine:
        yield engine


def completion(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "prompt": "hello", **fields}).encode()


def chat(**fields: Any) -> bytes:
    messages = [{"role": "user", "content": "hello"}]
    return json.dumps({"model": "tiny", "messages": messages, **fields}).encode()


def choices_of(response: Response) -> list[dict[str, Any]]:
    assert response.status == 200, response.body
    choices: list[dict[str, Any]] = json.loads(response.body)["choices"]
    return choices


async def test_repetition_ends_with_the_partial_text(argv: list[str]) -> None:
    body = completion(max_tokens=MAX_TOKENS, **ONE_TOKEN_FOREVER)
    neighbour = completion(max_tokens=5, ignore_eos=True)
    limits = RunLimits(max_repeated_tokens=MAX_REPEATED_TOKENS)
    async with engine_with(limits, argv) as engine:
        cut, whole = await asyncio.gather(
            engine.post(COMPLETIONS, body), engine.post(COMPLETIONS, neighbour)
        )
    (choice,) = choices_of(cut)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
    assert cut.cut == "max_repeated_tokens"
    assert MAX_REPEATED_TOKENS <= cut.output_tokens < MAX_TOKENS
    assert len(set(choice["text"])) == 1
    assert (whole.finish_reason, whole.output_tokens, whole.cut) == ("length", 5, None)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (COMPLETIONS, completion(max_tokens=MAX_TOKENS, ignore_eos=True, **ONE_TOKEN_FOREVER)),
        (CHAT, chat(max_tokens=MAX_TOKENS, ignore_eos=True, n=2)),
        ("/v1/responses", chat(input="hello", max_output_tokens=MAX_TOKENS, **ONE_TOKEN_FOREVER)),
    ],
)
async def test_time_limit_ends_with_the_partial_text(
    strict_engine: InProcessEngine, endpoint: str, body: bytes
) -> None:
    response = await strict_engine.post(endpoint, body)
    assert response.status == 200, response.body
    assert response.cut == "max_request_s"
    if endpoint == "/v1/responses":
        return  # its body has no place for a reason
    for choice in choices_of(response):
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "max_request_s")
        assert choice.get("text") or choice["message"]["content"]
    assert 0 < response.output_tokens < MAX_TOKENS * 2


async def test_engine_is_free_again_after_a_cut(strict_engine: InProcessEngine) -> None:
    await strict_engine.check(30)
    while strict_engine.stats().running:
        await strict_engine.post(COMPLETIONS, completion(max_tokens=1))
    assert strict_engine.evidence()["engine_stats"]["waiting"] == 0

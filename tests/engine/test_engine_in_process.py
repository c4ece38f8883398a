"""Test that the in-process engine answers as `vllm serve` would, and stays responsive."""

import asyncio
import json
from typing import Any

import prometheus_client
import pytest
from models import MAX_MODEL_LEN

from gristmill.worker.engine import EngineInfo, InProcessEngine, Response

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat(content: str = "hello", **fields: Any) -> bytes:
    messages = [{"role": "user", "content": content}]
    return json.dumps(
        {"model": "tiny", "messages": messages, "max_tokens": 4, "ignore_eos": True} | fields
    ).encode()


def completion(prompt: Any = "hello", **fields: Any) -> bytes:
    return json.dumps(
        {"model": "tiny", "prompt": prompt, "max_tokens": 4, "ignore_eos": True} | fields
    ).encode()


def error_of(response: Response) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(response.body)["error"]
    return error


async def until_running(engine: InProcessEngine, count: int) -> None:
    while engine.stats().running != count:
        await asyncio.sleep(0.001)


async def test_chat_is_answered_with_its_token_counts(engine: InProcessEngine) -> None:
    response = await engine.post(CHAT, chat())
    fields = json.loads(response.body)
    assert response.status == 200
    assert fields["choices"][0]["message"]["role"] == "assistant"
    assert response.prompt_tokens == fields["usage"]["prompt_tokens"] > 0
    assert response.output_tokens == 4
    assert response.finish_reason == "length"
    assert response.ttft_s is not None
    assert response.ttft_s > 0


async def test_small_prompts_do_not_wait_until_large_ones_are_tokenized(
    engine: InProcessEngine,
) -> None:
    """Each large prompt takes a second or two, and only its last 8 tokens count."""
    large = completion("the quick brown fox " * 25_000, truncate_prompt_tokens=8)
    running = [asyncio.create_task(engine.post(COMPLETIONS, large)) for _ in range(4)]
    for _ in range(3):
        assert (await engine.post(CHAT, chat())).status == 200
    assert sum(task.done() for task in running) < len(running)
    assert [(await task).prompt_tokens for task in running] == [8] * 4


async def test_completion_of_several_prompts_has_a_choice_each(engine: InProcessEngine) -> None:
    response = await engine.post(COMPLETIONS, completion(["one", "two", "three"]))
    assert [choice["index"] for choice in json.loads(response.body)["choices"]] == [0, 1, 2]
    assert response.output_tokens == 12


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("/v1/responses", {"input": "hello", "max_output_tokens": 4}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}),
    ],
)
async def test_every_other_route_goes_through_the_application(
    engine: InProcessEngine, endpoint: str, fields: dict[str, Any]
) -> None:
    response = await engine.post(
        endpoint, json.dumps({"model": "tiny", "temperature": 0} | fields).encode()
    )
    assert response.status == 200
    assert response.output_tokens == 4
    assert response.ttft_s is not None


async def test_tokenize_is_served(engine: InProcessEngine) -> None:
    response = await engine.post("/tokenize", completion("hi"))
    assert json.loads(response.body)["count"] == 2


async def test_float_for_max_tokens_is_answered_and_does_not_hang_the_engine(
    engine: InProcessEngine,
) -> None:
    response = await engine.post(CHAT, chat(max_tokens=4.0))
    assert response.output_tokens == 4
    await engine.check(30)


async def test_unknown_model_is_not_found(engine: InProcessEngine) -> None:
    response = await engine.post(CHAT, chat(model="nobody"))
    assert response.status == 404
    assert "nobody" in error_of(response)["message"]


@pytest.mark.parametrize("endpoint", [CHAT, "/v1/responses"])
async def test_stream_is_refused_with_the_field_and_the_remedy(
    engine: InProcessEngine, endpoint: str
) -> None:
    body = chat(stream=True, input="hello")
    response = await engine.post(endpoint, body)
    assert response.status == 400
    assert error_of(response)["param"] == "stream"
    assert "leave `stream` out" in error_of(response)["message"]


async def test_stream_spelled_with_an_escape_is_refused_as_well(engine: InProcessEngine) -> None:
    body = chat(stream=True).replace(b'"stream"', b'"\\u0073tream"')
    for endpoint, path_body in ((CHAT, body), ("/v1/messages", body)):
        response = await engine.post(endpoint, path_body)
        assert (response.status, error_of(response)["param"]) == (400, "stream")


@pytest.mark.parametrize("endpoint", ["/v1/embeddings", "/pause", "/v1/load_lora_adapter"])
async def test_endpoint_not_served_names_those_that_are(
    engine: InProcessEngine, endpoint: str
) -> None:
    response = await engine.post(endpoint, b"{}")
    assert response.status == 404
    assert CHAT in error_of(response)["message"]


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'"x"', b"null", b"\xff\xfe", b"{}"])
async def test_body_that_is_no_request_gets_an_error_body(
    engine: InProcessEngine, body: bytes
) -> None:
    response = await engine.post(CHAT, body)
    assert response.status in (400, 500)  # older vLLM falls over a list, and says 500
    assert error_of(response)["message"]
    await engine.check(30)


@pytest.mark.parametrize("endpoint", [CHAT, "/v1/responses"])
async def test_cancelling_a_post_frees_the_engine(engine: InProcessEngine, endpoint: str) -> None:
    body = chat(max_tokens=1500, ignore_eos=True, input="hello", max_output_tokens=1500)
    posted = asyncio.create_task(engine.post(endpoint, body))
    await until_running(engine, 1)
    posted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await posted
    await until_running(engine, 0)


async def test_lower_priority_number_runs_first_whatever_the_body_asks_for(
    engine: InProcessEngine,
) -> None:
    finished: list[str] = []
    warm = chat("warm", input="warm", max_output_tokens=1)  # its first use imports for long
    assert (await engine.post("/v1/responses", warm)).status == 200

    async def post(name: str, endpoint: str, priority: int) -> None:
        own = {"priority": 99 if priority else -99}
        body = chat(name, ignore_eos=True, max_tokens=200, input=name, max_output_tokens=200, **own)
        response = await engine.post(endpoint, body, priority=priority)
        assert response.status == 200
        finished.append(name)

    low = [asyncio.create_task(post(f"low{i}", CHAT, 0)) for i in range(24)]
    await until_running(engine, 8)
    await asyncio.gather(post("high", CHAT, -5), post("asgi", "/v1/responses", -5), *low)
    # By arrival they would have a fourth batch of 8 to themselves; a slow machine may let one begin before they arrive.
    assert {"high", "asgi"} <= set(finished[:24])


async def test_same_request_id_twice_is_answered_twice(engine: InProcessEngine) -> None:
    body = chat(request_id="twin")
    answers = await asyncio.gather(engine.post(CHAT, body), engine.post(CHAT, body))
    assert [answer.status for answer in answers] == [200, 200]


async def test_one_prompt_too_long_does_not_harm_its_neighbours(engine: InProcessEngine) -> None:
    too_long = completion([7] * (MAX_MODEL_LEN + 1), max_tokens=1)
    bodies = [completion(f"prompt {i}", max_tokens=1) for i in range(99)] + [too_long]
    answers = await asyncio.gather(*(engine.post(COMPLETIONS, body) for body in bodies))
    assert [answer.status for answer in answers] == [200] * 99 + [400]
    message = error_of(answers[-1])["message"]
    assert str(MAX_MODEL_LEN) in message
    assert str(MAX_MODEL_LEN + 1) in message


async def test_stats_count_and_prometheus_has_vllms_series(engine: InProcessEngine) -> None:
    before = engine.stats()
    await engine.post(CHAT, chat())
    after = engine.stats()
    assert after.steps > before.steps
    assert after.output_tokens == before.output_tokens + 4
    assert after.running == 0
    names = {metric.name for metric in prometheus_client.REGISTRY.collect()}
    assert {"vllm:num_requests_running", "vllm:generation_tokens"} <= names


async def test_info_says_what_is_served(info: EngineInfo) -> None:
    assert info.models == ("tiny",)
    assert (info.max_num_seqs, info.max_model_len) == (8, MAX_MODEL_LEN)
    assert (info.device, info.dtype, info.scheduling_policy) == ("cpu", "bfloat16", "priority")
    assert CHAT in info.endpoints
    assert "/v1/embeddings" not in info.endpoints

"""Test scenario 13: a constraint that does not compile fails only its own request, not 32 others."""

import asyncio
import json
from typing import Any

import pytest

from gristmill.worker.engine import InProcessEngine, Response

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"
NUM_BYSTANDERS = 32
LIMIT_S = 120


def schema(value: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}
    }


MALFORMED: dict[str, dict[str, Any]] = {
    "schema of a number": schema(7),
    "schema with an unknown type": schema({"type": "elephant"}),
    "schema with a type of a number": schema({"type": 7}),
    "schema that refers to nothing": schema({"$ref": "#/definitions/missing"}),
    "schema that refers to itself": schema({"$ref": "#"}),
    "schema with a broken pattern": schema({"type": "string", "pattern": "([a-"}),
    "schema with impossible bounds": schema({"type": "array", "minItems": 5, "maxItems": 1}),
    "schema of nothing": schema({}),
    "open regex group": {"structured_outputs": {"regex": "(((("}},
    "regex range backwards": {"structured_outputs": {"regex": "[z-a]+"}},
    "regex repetition of nothing": {"structured_outputs": {"regex": "*a"}},
    "grammar without a root": {"structured_outputs": {"grammar": 'leaf ::= "a"'}},
    "grammar that is none": {"structured_outputs": {"grammar": "}{ ::="}},
    "grammar that recurses on the left": {
        "structured_outputs": {"grammar": 'root ::= root "a" | "a"'}
    },
    "no choices": {"structured_outputs": {"choice": []}},
    "choices of numbers": {"structured_outputs": {"choice": [1, 2]}},
    "two constraints at once": {"structured_outputs": {"regex": "a", "choice": ["a"]}},
}


UNSUPPORTED: dict[str, Any] = {
    "maximum": {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
    "items": {"type": "array", "items": [{"type": "string"}]},
    "multipleOf": {"type": "integer", "multipleOf": 5},
    "uniqueItems": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
}


def chat(content: str, **fields: Any) -> bytes:
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 12}
    return json.dumps(body | fields).encode()


@pytest.mark.parametrize("name", MALFORMED)
async def test_only_the_culprit_is_refused(engine: InProcessEngine, name: str) -> None:
    bystanders = [
        engine.post(CHAT, chat(f"number {i}", ignore_eos=True)) for i in range(NUM_BYSTANDERS)
    ]
    async with asyncio.timeout(LIMIT_S):
        culprit, *others = await asyncio.gather(
            engine.post(CHAT, chat("culprit", **MALFORMED[name])), *bystanders
        )
        await engine.check(LIMIT_S)
    assert {other.status for other in others} == {200}
    assert {other.output_tokens for other in others} == {12}
    assert culprit.status in {200, 400}
    assert_is_explained(culprit)


@pytest.mark.parametrize("is_after_a_plain_schema", [False, True])
@pytest.mark.parametrize("name", UNSUPPORTED)
async def test_unsupported_keyword_is_named_in_any_order(
    engine: InProcessEngine, name: str, is_after_a_plain_schema: bool
) -> None:
    if is_after_a_plain_schema:
        assert (await engine.post(CHAT, chat("plain", **schema({"type": "integer"})))).status == 200
    value = {"type": "object", "properties": {"n": UNSUPPORTED[name]}, "required": ["n"]}
    refused = await engine.post(CHAT, chat("culprit", **schema(value)))
    assert refused.status == 400
    message = json.loads(refused.body)["error"]["message"]
    assert message.startswith(f"the schema's keyword {name} at #/properties/n is not supported; ")


async def test_constraint_that_fails_in_the_engine_says_why(engine: InProcessEngine) -> None:
    refused = await engine.post(CHAT, chat("culprit", **schema({"$ref": "#"})))
    assert (refused.status, refused.is_refusal) == (400, True)
    message = json.loads(refused.body)["error"]["message"]
    assert "failed in the engine: no token of the model continues the answer" in message


def assert_is_explained(culprit: Response) -> None:
    if culprit.status != 200:
        assert json.loads(culprit.body)["error"]["message"]

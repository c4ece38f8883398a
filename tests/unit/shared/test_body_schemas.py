"""The schemas that workers publish: what is in them, and their bounds."""

import base64
import zlib
from typing import Any

import orjson
import pytest

from gristmill.shared import body_schemas
from gristmill.shared.body_schemas import published_facts, schema_of

CHAT = "/v1/chat/completions"


def document(version: str = "3.1.0", **components: Any) -> dict[str, Any]:
    """Return an OpenAPI document of one endpoint whose body is the component `Chat`."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Chat"}}}
    post = {"requestBody": {"content": content}}
    return {
        "openapi": version,
        "paths": {CHAT: {"post": post}, "/health": {"get": {}}},
        "components": {"schemas": components},
    }


CHAT_SCHEMA = {"type": "object", "properties": {"tool": {"items": {"$ref": "#/components/schemas/Tool"}}}}  # fmt: skip
TOOL = {"type": "string"}


def test_what_is_published_is_read_back_with_all_that_it_refers_to_and_no_more() -> None:
    facts = published_facts(document(Chat=CHAT_SCHEMA, Tool=TOOL, Other={}), (CHAT, "/health"))
    schema = schema_of(facts["body_schemas"].encode(), CHAT)
    assert schema == {
        "$ref": "#/components/schemas/Chat",
        "components": {"schemas": {"Chat": CHAT_SCHEMA, "Tool": TOOL}},
    }
    assert schema_of(facts["body_schemas"].encode(), "/health") is None


def test_equal_schemas_have_equal_digests() -> None:
    one, same = (published_facts(document(Chat=TOOL), [CHAT]) for _ in range(2))
    other = published_facts(document(Chat=CHAT_SCHEMA, Tool=TOOL), [CHAT])
    assert one["body_schemas_digest"] == same["body_schemas_digest"] != other["body_schemas_digest"]


@pytest.mark.parametrize("openapi", [{}, {"openapi": "3.1.0"}, document("3.0.3", Chat=TOOL)])
def test_a_server_without_json_schemas_publishes_none(openapi: dict[str, Any]) -> None:
    assert published_facts(openapi, [CHAT]) == {}


def test_schemas_over_the_limit_are_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_schemas, "MAX_PUBLISHED_BYTES", 100)
    assert published_facts(document(Chat=CHAT_SCHEMA, Tool=TOOL), [CHAT]) == {}


def test_components_that_are_no_object_are_none() -> None:
    without = document(Chat=CHAT_SCHEMA) | {"components": [1]}
    schema = schema_of(published_facts(without, [CHAT])["body_schemas"].encode(), CHAT)
    assert schema == {"$ref": "#/components/schemas/Chat", "components": {"schemas": {}}}


def test_deep_alternatives_are_put_in_order_once() -> None:
    """An order that sorts each level anew takes two to the power of the levels."""
    schema: dict[str, Any] = TOOL
    for _ in range(60):
        schema = {"anyOf": [schema, {"type": "null"}]}
    assert published_facts(document(Chat=schema), [CHAT])


def packed(data: bytes) -> bytes:
    return base64.b64encode(zlib.compress(data))


@pytest.mark.parametrize(
    "text",
    [
        b"", b"?", b"AAAA", packed(b"{"), packed(b"[]"), packed(orjson.dumps({"paths": {CHAT: 5}})),
        packed(b"[" * (body_schemas.MAX_SCHEMA_BYTES + 1)),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_no_schema(text: bytes) -> None:
    assert schema_of(text, CHAT) is None


def test_equal_schemas_in_another_order_have_one_digest() -> None:
    """Two processes make lists from sets, and dicts from what they find, in orders of their own."""

    def facts(*, is_reversed: bool) -> dict[str, str]:
        step = -1 if is_reversed else 1
        kinds = [{"type": "string"}, {"$ref": "#/components/schemas/A"}][::step]
        body = {"properties": {"x": {"anyOf": kinds}}, "required": ["x", "y"][::step]}
        content = {"application/json": {"schema": body}}
        components = {"A": {"enum": ["a", "b"][::step]}, "B": {"type": "null"}}
        document = {
            "openapi": "3.1.0",
            "paths": {"/v1/x": {"post": {"requestBody": {"content": content}}}},
            "components": {"schemas": dict(list(components.items())[::step])},
        }
        return published_facts(document, ["/v1/x"])

    assert facts(is_reversed=False) == facts(is_reversed=True) != {}

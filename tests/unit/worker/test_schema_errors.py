"""Name the keyword at fault in a schema; the test's backend refuses `multipleOf`, and `pattern` with `maxLength`."""

from typing import Any

import pytest

from gristmill.worker.engine.vllm.schema_errors import find_keyword

BAD = {"type": "integer", "multipleOf": 5}


def refuses(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(refuses, schema))
    if not isinstance(schema, dict):
        return False
    is_bad = "multipleOf" in schema or {"pattern", "maxLength"} <= schema.keys()
    return is_bad or any(map(refuses, schema.values()))


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        (BAD, "multipleOf at #"),
        ({"type": "object", "properties": {"n": BAD}}, "multipleOf at #/properties/n"),
        ({"anyOf": [{"type": "string"}, {"items": BAD}]}, "multipleOf at #/anyOf/1/items"),
        ({"$ref": "#/$defs/x", "$defs": {"x": BAD}}, "multipleOf at #/$defs/x"),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/x"}, "b": BAD},
                "$defs": {"x": {"type": "string"}},
            },
            "multipleOf at #/properties/b",
        ),
        ({"type": "string", "pattern": "a", "maxLength": 1}, "pattern, maxLength at #"),
        ({"enum": [{"multipleOf": 1}]}, "enum at #"),
        ({"type": "string"}, None),
        (7, None),
    ],
)
def test_keyword_at_fault_is_found_with_its_place(schema: Any, found: str | None) -> None:
    assert find_keyword(schema, refuses) == found

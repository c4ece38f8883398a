"""Bodies against the schemas that workers publish."""

from typing import Any, Literal

import orjson
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from gristmill.producer.batches.lifecycle import body_check
from gristmill.producer.batches.lifecycle.body_check import BodyCheck, body_check_of
from gristmill.shared.request import COMPLETIONS, Request


def problem(schema: Any, body: Any, *, is_described: bool = True) -> str | None:
    request = Request(id="a", body=orjson.dumps(body), endpoint=COMPLETIONS)
    return BodyCheck([schema]).problem(request, is_described=is_described)


def schema_with(kind: Any) -> dict[str, Any]:
    field = TypeAdapter(kind).json_schema()
    definitions = field.pop("$defs", {})
    return {"type": "object", "properties": {"field": field}, "$defs": definitions}


class Text(BaseModel):
    kind: Literal["text"]
    size: int


KINDS = (int, float, bool, str, int | None, bool | str, list[int], dict[str, float], Text, list[Text | float])  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, -5, 1.0, 0.5, 1e30, "", "5", " 5 ", "-5", "+5", "5.0", "5.", ".5", "0.5", "1e5", "1_000",
    "inf", "-Infinity", "NaN", "true", "False", "on", "no", "T", "maybe", "five", [], [1, "2", True], ["x"], {},
    {"a": "1"}, {"a": "b"}, {"kind": "text", "size": "5"}, {"kind": "image", "size": 5}, [{"kind": "text", "size": 1}],
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_pydantic_takes_is_never_refused(kind: Any, value: Any) -> None:
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return
    assert problem(schema_with(kind), {"field": value}) is None


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (float | None, "warm", 'field must be number or null, not "warm"'),
        (int, "five", 'field must be integer, not "five"'),
        (bool, [1], "field must be boolean, not [1]"),
        (list[int], "x", 'field must be array, not "x"'),
        (list[int], [1, 2, None], "field.2 must be integer, not null"),
        (str, 5, "field must be string, not 5"),
        (Text | None, {"kind": "image"}, 'field must be Text or null, not {"kind":"image"}'),
        (Literal["a", "b"], "c", 'field: this value is not one of "a" or "b"'),
    ],
)
def test_what_is_wrong_is_named_with_its_place(kind: Any, value: Any, expected: str) -> None:
    found = problem(schema_with(kind), {"field": value})
    assert found == f"its body does not fit /v1/completions: {expected}"


def test_a_missing_field_is_named() -> None:
    found = problem({"type": "object", "required": ["messages"]}, {"prompt": "x"})
    assert found
    assert found.endswith('the body: "messages" is a required property')


def test_a_long_wrong_value_is_cut() -> None:
    found = problem(schema_with(int), {"field": "x" * 5_000})
    assert found
    assert len(found) < 200


def test_details_take_bounded_time_and_memory() -> None:
    """26 KB with 1,000 wrong parts took 0.6 s and 67 MB to describe."""
    schema = schema_with(list[Text | float])
    large = {"field": [["x"]] * body_check.MAX_DESCRIBED_BYTES}
    for body, is_described in ((large, True), ({"field": "x"}, False)):
        found = problem(schema, body, is_described=is_described)
        assert found
        assert "/openapi.json" in found


def test_a_body_that_fits_one_of_several_schemas_is_right() -> None:
    request = Request(id="a", body=b'{"field":[1]}', endpoint=COMPLETIONS)
    one, other = schema_with(str), schema_with(list[int])
    assert BodyCheck([one, other]).problem(request, is_described=True) is None
    assert BodyCheck([one]).problem(request, is_described=True)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:1/schema"}, {"$ref": "file:///etc/passwd"}, {"$ref": "#/components/schemas/Gone"},
        {"type": "nonsense"}, {"pattern": "("}, {"pattern": "(?=lookahead)"}, {"pattern": "(a{1000}){1000}"},
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_used_checks_nothing(schema: dict[str, Any]) -> None:
    assert body_check_of([{"type": "object"}, schema]) is None


def test_without_schemas_there_is_no_check() -> None:
    assert body_check_of([]) is None


def test_a_pattern_takes_linear_time() -> None:
    schema = {"properties": {"field": {"pattern": "^(a+)+$"}}}
    assert problem(schema, {"field": "a" * 50_000 + "!"}, is_described=False)


def test_a_schema_that_refers_to_itself_ends() -> None:
    node = {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/node"}}, {"type": "null"}]}
    schema = {"properties": {"field": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}
    assert problem(schema, {"field": [[None], []]}) is None
    assert problem(schema, {"field": [["x"]]})

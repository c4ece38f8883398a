"""Test the limits of constraints, which the engine compiles in threads that nothing can stop."""

import json
from typing import Any

import pytest

from gristmill.shared.constraint_limits import constraint_excess, repetitions
from gristmill.worker.engine.refusals import refusal

CHAT = "/v1/chat/completions"
NESTED = "((a{1,9999}){1,9999}){1,9999}"
MANY = [f"c{number}" for number in range(5_001)]


def schema(**value: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": value}}


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": [], **fields}


def with_schema(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return every body that carries a schema, with the name of the field at fault."""
    named = {"name": "x", "schema": value}
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": value}}
    tool = {"type": "function", "function": {"name": "f", "parameters": value}}
    return [
        ("structured_outputs", body(structured_outputs={"json": value})),
        ("structured_outputs", body(structured_outputs={"json": json.dumps(value)})),
        ("structured_outputs", body(structured_outputs={"structural_tag": json.dumps(tag)})),
        ("response_format", body(response_format={"type": "json_schema", "json_schema": named})),
        ("response_format", body(response_format=tag)),
        ("text", body(text={"format": {"type": "json_schema", **named}})),
        ("output_config", body(output_config={"format": {"type": "json_schema", "schema": value}})),
        ("tools", body(tools=[tool])),
        ("tools", body(tools=[{"name": "f", "input_schema": value}])),
    ]


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        ({"choice": MANY}, "5,001 choices in one list, the limit is 5,000"),
        ({"choice": ["x" * 100] * 700}, "characters, the limit is 65,536"),
        ({"regex": NESTED}, "repetitions by {m,n}"),
        ({"regex": "x" * 8_193}, "8,193 characters in one regular expression"),
        ({"grammar": "root ::= " + "x" * 70_000}, "characters, the limit is 65,536"),
        ({"grammar": 'root ::= ("a" {1,9999}) {1,9999}'}, "repetitions by {m,n}"),
        ({"json": {}, "whitespace_pattern": NESTED}, "repetitions by {m,n}"),
    ],
)
def test_constraint_above_a_limit_is_refused_by_name(
    constraint: dict[str, Any], words: str
) -> None:
    refused = refusal(CHAT, json.dumps(body(structured_outputs=constraint)).encode(), [CHAT], 256)
    assert refused is not None
    assert (refused.status, refused.is_refusal) == (400, True)
    error = json.loads(refused.body)["error"]
    assert error["param"] == "structured_outputs"
    assert words in error["message"]
    assert "simplify it" in error["message"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (schema(enum=MANY), "5,001 choices"),
        (schema(pattern=NESTED), "repetitions"),
        (schema(patternProperties={NESTED: {}}), "repetitions"),
        (schema(maxLength=10**9), "sum of its lengths"),
        (schema(items={"maxItems": 1e300}), "sum of its lengths"),
        ({"properties": {f"p{number}": {} for number in range(501)}}, "501 properties"),
        (schema(const="x" * 70_000), "characters"),
    ],
)
def test_schema_is_limited_wherever_a_body_carries_it(value: Any, words: str) -> None:
    for name, fields in with_schema(value):
        excess = constraint_excess(fields)
        assert excess is not None, name
        assert excess[0] == name
        assert words in excess[1]


@pytest.mark.parametrize(
    "value",
    [
        schema(enum=MANY[:5_000], description="x" * 10**6),
        schema(type="string", maxLength=1_000_000, pattern="^[A-Z]{2}-[0-9]{4}$"),
        schema(type="array", minItems=None, items={"$ref": "#/$defs/x"}),
        {"properties": {f"p{number}": {"type": "string"} for number in range(500)}},
        {"properties": {"pattern": {}, "enum": {}, "maxLength": {}, "description": {}}},
        "no schema",
        None,
    ],
)
def test_schema_within_the_limits_is_left_to_the_engine(value: Any) -> None:
    for _, fields in with_schema(value):
        assert constraint_excess(fields) is None


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("abc+d*", 0),
        ("[A-Z]{2}-[0-9]{4}", 6),
        ("a{3,}", 3),
        ("a{,7}", 7),
        ("a{2}{3}", 6),
        ("(a{10}b{5}){4}", 60),
        ("((x)){1,9}", 9),
        (r"\{9\}\({8}", 8),
        ("[({9}]{2}", 2),
        ("(a{1,9999}){1,9999}", 9999**2),
        ("a{" + "9" * 5_000 + "}", 10**12),
        ("(" * 10_000 + "a{2}" + "){9}" * 10_000, 10**12),
        (")){3}", 3),
        ("a{0}{", 0),
    ],
)
def test_counts_add_up_and_nested_ones_multiply(pattern: str, expected: int) -> None:
    assert repetitions(pattern) == expected


def test_quoted_texts_of_a_grammar_hold_no_counts() -> None:
    assert repetitions(r'root ::= "[a{9}\"" b {3} [^"]{2}', has_quotes=True) == 5


@pytest.mark.parametrize(
    "grammar",
    [
        '# "\nroot ::= [a-z]{9}',
        "# [\nroot ::= [a-z]{9}",
        'root ::= "a" # it\'s "x\n [a-z]{9}',
        'root ::= "a" # "x\r [a-z]{9}',
        '# \\\nroot ::= "#" ["#] {4 # as few\n , 9}',
        '// "\nroot: "a"{9}',
    ],
)
def test_comment_of_a_grammar_hides_no_count(grammar: str) -> None:
    assert repetitions(grammar, has_quotes=True) == 9


def test_count_in_a_comment_of_a_grammar_does_not_count() -> None:
    assert repetitions('# a{9}\nroot ::= "#" b{2} # c{9}', has_quotes=True) == 2

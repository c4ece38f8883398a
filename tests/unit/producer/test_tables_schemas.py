import datetime
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import duckdb
import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel, field_validator
from table_runs import prompt_of, requests_of, row_with, run_table, table_of

from gristmill.producer.batches.rows import first_id, second_id
from gristmill.producer.tables.answer_columns import AnswerColumns
from gristmill.producer.tables.answer_json import json_object_in
from gristmill.producer.tables.answer_schema import AnswerSchema, read_schema
from gristmill.producer.tables.batch_lines import batch_lines
from gristmill.producer.tables.schema_types import column_types, properties_of
from gristmill.producer.tables.spec import TableSpec
from gristmill.producer.tables.structured_answers import StructuredAnswers
from gristmill.shared.errors import GristmillError, InvalidRequest
from gristmill.shared.request import Request


def document(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize(
    ("part", "arrow", "valid", "value"),
    [
        ({"type": "string"}, pa.string(), "a", "a"),
        ({"type": "string", "format": "date"}, pa.string(), "2026-11-30", "2026-11-30"),
        ({"type": "integer"}, pa.int64(), 7.0, 7),
        ({"type": "number"}, pa.float64(), 2**53 + 1, float(2**53)),
        ({"type": "boolean"}, pa.bool_(), True, True),
        ({"type": ["integer", "null"]}, pa.int64(), None, None),
        ({"type": ["integer", "number"]}, pa.float64(), 1, 1.0),
        ({"type": "null"}, pa.string(), None, None),
        ({"enum": ["a", "b", None]}, pa.string(), "b", "b"),
        ({"enum": [1, 2.5]}, pa.float64(), 1, 1.0),
        ({"enum": [1, "a"]}, pa.string(), 1, "1"),
        ({"enum": [[1]]}, pa.string(), [1], "[1]"),
        ({"const": True}, pa.bool_(), True, True),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, pa.float64(), 1, 1.0),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, pa.string(), "1", '"1"'),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, pa.float64(), 1, 1.0),
        ({"allOf": [{"type": "integer"}], "default": 1}, pa.int64(), 1, 1),
        ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, pa.string(), 1, "1"),
        ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.int64()), [1.0, 2], [1, 2]),
        ({"type": "array", "items": {}}, pa.list_(pa.string()), [1, "a", None], ["1", '"a"', None]),
        ({"type": "array"}, pa.string(), [1], "[1]"),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, pa.string(), [1], "[1]"),
        (
            {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}},
            pa.struct([("x", pa.int64()), ("y", pa.string())]),
            {"x": 1.0, "z": 2},
            {"x": 1, "y": None},
        ),
        (
            {"type": "object", "properties": {"x": {}}, "anyOf": [{"required": ["x"]}]},
            pa.struct([("x", pa.string())]),
            {"x": {"k": [1]}},
            {"x": '{"k":[1]}'},
        ),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, pa.string(), {"a": 1}, '{"a":1}'),
        ({"type": "object", "properties": {}}, pa.string(), {}, "{}"),
        ({"properties": {"x": {"type": "integer"}}}, pa.string(), "no object", '"no object"'),
        (True, pa.string(), [None], "[null]"),
        ({"$ref": "#/$defs/a~1b%20c"}, pa.int64(), 3, 3),
        ({"$ref": "#/$defs/node"}, pa.struct([("next", pa.string())]), {"next": {"next": None}}, {"next": '{"next":null}'}),
        ({"$ref": "#"}, pa.string(), {"value": None}, '{"value":null}'),
    ],
)  # fmt: skip
def test_a_part_of_a_schema_has_a_type_and_its_values_are_of_this_type(
    part: Any, arrow: Any, valid: Any, value: Any
) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    whole = document(value=part) | {"$defs": {"a/b c": {"type": "integer"}, "node": node}}
    kind = column_types(AnswerSchema(whole).document)["value"]
    assert kind.arrow == arrow
    assert kind.value(valid) == value
    assert type(kind.value(valid)) is type(value)
    assert pa.array([kind.value(valid), None], kind.arrow).to_pylist() == [value, None]


class Tone(Enum):
    GOOD = "good"
    BAD = "bad"


class Part(BaseModel):
    name: str
    parts: list["Part"] = []


class Review(BaseModel):
    tone: Tone
    kind: Literal["short", "long"]
    score: int | None
    share: float
    day: datetime.date
    tags: list[str]
    part: Part
    pair: tuple[int, int]
    counts: dict[str, int]

    @field_validator("share")
    @classmethod
    def _is_a_share(cls, share: float) -> float:
        if share > 1:
            raise ValueError("a share is at most 1")
        return share


REVIEW = {
    "tone": "good", "kind": "long", "score": 3, "share": 1, "day": "2026-11-30", "tags": ["a", "b"],
    "part": {"name": "x", "parts": [{"name": "y", "parts": []}]}, "pair": [1, 2], "counts": {"k": 1},
}  # fmt: skip


def test_the_references_and_types_of_a_pydantic_model_are_resolved() -> None:
    schema = AnswerSchema.of_model(Review)
    kinds = column_types(schema.document)
    assert {name: str(kind.arrow) for name, kind in kinds.items()} == {
        "tone": "string",
        "kind": "string",
        "score": "int64",
        "share": "double",
        "day": "string",
        "tags": "list<item: string>",
        "part": "struct<name: string, parts: list<item: string>>",
        "pair": "string",
        "counts": "string",
    }
    assert list(properties_of(AnswerSchema.of_model(Part).document)) == ["name", "parts"]
    assert str(column_types(AnswerSchema.of_model(Part).document)["parts"].arrow) == (
        "list<item: string>"
    )


@pytest.mark.parametrize(
    ("text", "is_cut", "expected"),
    [
        ('{"a": 1}', False, {"a": 1}),
        (' {"a": {"b": "}"}}\n', True, {"a": {"b": "}"}}),
        ('{"a": "b\nc\x1c"}', False, {"a": "b\nc\x1c"}),
        ("[1]", False, None),
        ('```json\n{"a": 1}\n```', False, {"a": 1}),
        ('```json\n{"a": 1}\n``` And more', True, {"a": 1}),
        ('Sure! {"a": 1}', False, {"a": 1}),
        ('First {"a": 1}, better: {"a": 2}.', False, {"a": 2}),
        ('For {name} it is {"a": ...}, so {"a": 1}', False, {"a": 1}),
        ('{"a": {"b": 1}, "c": "tex', True, None),
        ('So: {"a": {"b": 1}', True, None),
        ('Draft: {"a": 1} Final: {"a": "goo', True, None),
        ('So: {"a": {"b": 1} "c": {"b": 2}}', False, None),
        ('{"a": {"b": 1}', False, None),
        ('x {"a": NaN}', False, None),
        ('x {"a": "\\ud800"}', False, None),
        pytest.param("{" * 3_000, False, None, id="many braces"),
        pytest.param('{"a":' * 100_000, False, None, id="deep"),
        pytest.param("x{ " * 1_000_000, False, None, id="a million braces"),
        pytest.param('So: {"a": ' + "1" * 5_000, True, None, id="many digits, cut"),
        pytest.param('So: {"a": ' + "1" * 5_000 + "}", False, None, id="many digits"),
        pytest.param('{"a": ' + "1" * 5_000, False, None, id="many digits that do not end"),
        ("", False, None),
    ],
)
def test_the_object_of_an_answer_is_found(text: str, is_cut: bool, expected: Any) -> None:
    assert json_object_in(text, is_cut=is_cut) == expected


@pytest.mark.parametrize(
    ("text", "reason", "told"),
    [
        ('{"tone": "good"', "length", "cut_answer: the JSON had no end after 9 tokens; raise max_tokens"),
        ("I cannot say.", "stop", "no_json: the answer has no JSON object"),
        ('{"tone": "odd"}', "stop", 'schema_mismatch: tone: "odd" is not one of "good" or "bad"'),
        ('{"n": 1}', "stop", 'schema_mismatch: the answer: "tone" is a required property'),
        ('{"tone": "bad", "n": 1e30}', "stop", "schema_mismatch: 1e+30 does not fit into 64 bits"),
        ('{"tone": "bad", "n": 1, "part": {"a": [1, "x"]}}', "stop", 'schema_mismatch: part.a.1: "x" is not of type'),
    ],
)  # fmt: skip
def test_an_answer_that_does_not_fit_has_a_code_a_text_and_its_words(
    text: str, reason: str, told: str
) -> None:
    inner = document(a={"type": "array", "items": {"type": "integer"}})
    whole = document(tone={"enum": ["good", "bad"]}, n={"type": "integer"}, part=inner)
    schema = AnswerSchema(whole | {"required": ["tone"]})
    columns = AnswerColumns({}, [], StructuredAnswers(schema, "parquet"))
    row = orjson.loads(
        row_with(Request(body=b"", id="run-1"), text, reason=reason, output_tokens=9)
    )
    answer = columns.read(row)
    assert answer.error is not None
    assert answer.error.startswith(told)
    assert answer.values == [None, None, None, text, 3, 9, reason, answer.error]
    assert answer.is_cut == (reason == "length")


def test_the_validators_of_a_model_check_the_answer_too() -> None:
    answers = StructuredAnswers(AnswerSchema.of_model(Review), "parquet")
    fine = answers.read(orjson.dumps(REVIEW).decode(), output_tokens=1, is_cut=False)
    assert dict(zip(REVIEW, fine.values, strict=True)) == REVIEW | {
        "part": {"name": "x", "parts": ['{"name":"y","parts":[]}']},
        "pair": "[1,2]",
        "counts": '{"k":1}',
    }
    text = orjson.dumps(REVIEW | {"share": 2}).decode()
    refused = answers.read(text, output_tokens=1, is_cut=False)
    assert (refused.code, refused.reason) == (
        "schema_mismatch",
        "share: Value error, a share is at most 1",
    )


@pytest.mark.parametrize(
    ("whole", "told"),
    [
        ({"type": "objekt"}, r"is no JSON Schema: \"objekt\" is not valid"),
        ({"type": "array", "items": {}}, "describes no object with properties"),
        ({"type": "object"}, "describes no object with properties"),
        (document(a={"$ref": "#/$defs/none"}), "no JSON Schema: Pointer"),
        (document(a={"$ref": "https://example.org/x"}), "refers to https://example.org/x"),
        (document(a={"pattern": "("}), "no JSON Schema"),
    ],
)
def test_a_document_that_gives_no_columns_is_refused(whole: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        AnswerSchema(whole)


def test_a_schema_above_the_limits_of_workers_is_refused_unless_it_only_checks() -> None:
    schema = AnswerSchema(document(a={"enum": [f"{number}" for number in range(5_001)]}))
    with pytest.raises(InvalidRequest, match=r"5,001 choices .* the constraint: --parse json"):
        TableSpec(prompt="{text}", schema=schema)
    TableSpec(prompt="{text}", schema=schema, parse="json")


def test_a_schema_is_read_from_a_file_or_a_module_of_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    whole = document(a={"type": "integer"})
    Path("s.json").write_bytes(orjson.dumps(whole))
    Path("list.json").write_text("[1]")
    Path("broken.json").write_text("{\n1}")
    Path("shapes_of_a_test.py").write_text(
        "from pydantic import BaseModel\n"
        "from typing import Callable\n"
        "class A(BaseModel):\n    a: int\n"
        "class B(BaseModel):\n    b: Callable[[], int]\n"
    )
    Path("broken_module_of_a_test.py").write_text("1 / 0")
    assert read_schema("s.json") == AnswerSchema(whole)
    read = read_schema("shapes_of_a_test:A")
    assert read.model is not None
    assert list(properties_of(read.document)) == ["a"]
    with pytest.raises(GristmillError, match=r"none\.json"):
        read_schema("none.json")
    for source, told in [
        ("list.json", "is no object"),
        ("broken.json", "is no JSON: .* in line 2"),
        ("shapes_of_a_test:C", "cannot be imported: AttributeError"),
        ("shapes_of_a_test:B", "B has no JSON Schema"),
        ("shapes_of_a_test:BaseModel.__name__", "is no Pydantic model"),
        ("no_such_module:A", "cannot be imported: ModuleNotFoundError"),
        ("broken_module_of_a_test:A", "cannot be imported: ZeroDivisionError"),
    ]:
        with pytest.raises(InvalidRequest, match=told):
            read_schema(source)
    assert str(Path.cwd()) not in sys.path


def test_a_schema_whose_references_double_at_each_level_gets_types_at_once() -> None:
    def level(number: int) -> dict[str, Any]:
        part = {"$ref": f"#/$defs/l{number + 1}"}
        return {"type": "object", "properties": {"a": part, "b": part}}

    levels = {f"l{number}": level(number) for number in range(40)}
    whole = level(-1) | {"$defs": levels | {"l40": {"type": "integer"}}}
    assert list(column_types(whole)) == ["a", "b"]


def test_options_that_do_not_fit_a_schema_are_refused() -> None:
    schema = AnswerSchema(document(a={"type": "integer"}))
    with pytest.raises(InvalidRequest, match="--parse json needs --schema"):
        TableSpec(prompt="{text}", parse="json")
    with pytest.raises(InvalidRequest, match="--params has 'response_format'"):
        TableSpec(prompt="{text}", schema=schema, params={"response_format": {}})


def test_names_of_a_schema_that_clash_are_refused_with_the_option_that_helps() -> None:
    schema = AnswerSchema(document(label={"type": "string"}, answer={"type": "string"}))
    answers = StructuredAnswers(schema, "csv")
    with pytest.raises(InvalidRequest, match=r"would be 'answer'.*--rename answer=answer_2"):
        AnswerColumns({}, [], answers)
    with pytest.raises(InvalidRequest, match=r"the input has a column 'label'.*--rename label="):
        AnswerColumns({"answer": "raw"}, ["label"], answers)
    with pytest.raises(InvalidRequest, match=r"use label, answer, prompt_tokens"):
        AnswerColumns({"other": "raw"}, [], answers)
    columns = AnswerColumns({"answer": "raw", "label": "kind"}, ["label"], answers)
    assert columns.schema.names == [
        "kind", "answer", "raw", "prompt_tokens", "output_tokens", "finish_reason", "error"
    ]  # fmt: skip


def lines(path: Path, *rows: Mapping[str, Any]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


SPEC = TableSpec(prompt="{text}", schema=AnswerSchema.of_model(Review), params={"max_tokens": 50})


def reviewed(request: Request) -> bytes:
    """Return the answer that the prompt asks for: a right one, or a broken one."""
    if prompt_of(request) == "broken":
        return row_with(request, '{"tone": ')
    return row_with(request, orjson.dumps(REVIEW).decode())


def test_pandas_polars_and_duckdb_read_the_typed_columns(tmp_path: Path) -> None:
    source = lines(tmp_path / "in.jsonl", {"text": "fine"}, {"text": "broken"}, {"text": None})
    path = tmp_path / "out.parquet"
    run_table([source], path, SPEC, answer=reviewed)
    written = pq.read_table(path)
    assert written.schema.field("part").type == pa.struct(
        [("name", pa.string()), ("parts", pa.list_(pa.string()))]
    )
    assert pd.read_parquet(path, dtype_backend="pyarrow")["score"].to_list()[0] == 3
    assert list(pd.read_parquet(path)["tags"][0]) == ["a", "b"]
    frame = pl.read_parquet(path)
    assert frame.schema["tags"] == pl.List(pl.String)
    assert frame.schema["part"] == pl.Struct({"name": pl.String, "parts": pl.List(pl.String)})
    assert frame["share"].to_list() == [1.0, None, None]
    query = f"SELECT part.name, tags[2], score + 1, share, error FROM '{path}'"  # noqa: S608
    fine, broken, null = duckdb.sql(query).fetchall()
    assert fine == ("x", "b", 4, 1.0, None)
    assert broken[:4] == null[:4] == (None, None, None, None)
    assert broken[4].startswith("no_json: ")
    assert null[4].startswith("null_value: ")
    assert written["answer"].to_pylist()[1] == '{"tone": '


def test_csv_has_lists_and_records_as_json_and_jsonl_has_all_as_it_is(tmp_path: Path) -> None:
    source = lines(tmp_path / "in.jsonl", {"text": "fine"}, {"text": "broken"})
    run_table([source], tmp_path / "out.csv", SPEC, answer=reviewed)
    row = pd.read_csv(tmp_path / "out.csv").iloc[0]
    assert (row["tone"], row["score"], row["share"]) == ("good", 3, 1.0)
    assert orjson.loads(row["tags"]) == ["a", "b"]
    assert orjson.loads(row["part"]) == REVIEW["part"]
    run_table([source], tmp_path / "out.jsonl", SPEC, answer=reviewed)
    written = [orjson.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert {name: written[0][name] for name in REVIEW} == REVIEW
    assert [written[1][name] for name in REVIEW] == [None] * len(REVIEW)


def test_the_body_has_the_schema_unless_it_only_checks(tmp_path: Path) -> None:
    source = lines(tmp_path / "in.jsonl", {"text": "fine"})
    assert SPEC.schema is not None
    for parse, expected in [(None, SPEC.schema.document), ("json", None)]:
        spec = TableSpec(prompt="{text}", schema=SPEC.schema, parse=parse)
        (request,) = requests_of(table_of(source), spec, tmp_path)
        assert isinstance(request, Request)
        answer_format = orjson.loads(request.body).get("response_format")
        assert (answer_format and answer_format["json_schema"]["schema"]) == expected
        (line,) = batch_lines(table_of(source), spec)
        assert orjson.loads(line)["body"].get("response_format") == answer_format


class Killed(Exception):
    pass


def limit_of(request: Request) -> int:
    return int(orjson.loads(request.body)["max_tokens"])


def test_a_cut_answer_is_asked_again_with_more_room_also_after_a_kill(tmp_path: Path) -> None:
    texts = ["fine", "long", "endless", "fine", "long"]
    source = lines(tmp_path / "in.jsonl", *[{"text": text} for text in texts])
    spec = TableSpec(prompt="{text}", schema=SPEC.schema, max_tokens=50, dedupe=True)
    asked: list[tuple[str, int]] = []
    dies = [True]

    def answer(request: Request) -> bytes:
        limit = limit_of(request)
        if limit > 50 and dies.pop():
            raise Killed
        asked.append((request.id, limit))
        if prompt_of(request) == "fine" or (prompt_of(request) == "long" and limit > 50):
            return reviewed(request)
        return row_with(request, '{"tone": "go', reason="length", output_tokens=limit)

    with pytest.raises(Killed):
        run_table([source], tmp_path / "out.parquet", spec, answer=answer)
    assert asked == [("run-1", 50), ("run-2", 50)]
    dies[:] = [False] * 2
    run_table([source], tmp_path / "out.parquet", spec, answer=answer)
    assert asked[2:] == [
        ("run-2", 50),  # Redis has its result, and answers it without a run
        ("run-2-again100", 100),
        ("run-3", 50),
        ("run-3-again100", 100),
    ]
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["tone"] for row in rows] == ["good", "good", None, "good", "good"]
    assert rows[2]["error"].startswith("cut_answer: the JSON had no end after 100 tokens")
    assert (rows[2]["answer"], rows[2]["output_tokens"]) == ('{"tone": "go', 100)


@pytest.mark.parametrize(
    ("params", "output_tokens", "again"),
    [
        ({"max_tokens": 50}, 50, ["run-1-again100"]),
        ({"max_tokens": 50}, 49, []),  # the model's own limit cut it
        ({"max_tokens": 600}, 600, ["run-1-again1000"]),
        ({"max_tokens": 50, "max_completion_tokens": 60}, 60, ["run-1-again120"]),
        ({}, 500, []),
    ],
)
def test_a_second_answer_has_twice_the_tokens_within_the_limit_of_the_model(
    tmp_path: Path, params: dict[str, int], output_tokens: int, again: list[str]
) -> None:
    source = lines(tmp_path / "in.jsonl", {"text": "long"})
    spec = TableSpec(prompt="{text}", schema=SPEC.schema, params=params)

    def cut(request: Request) -> bytes:
        return row_with(request, "{", reason="length", output_tokens=output_tokens)

    ran = run_table([source], tmp_path / "out.csv", spec, answer=cut)
    assert ran == ["run-1", *again]


def test_ids_of_second_requests_lead_to_the_first_one() -> None:
    assert second_id("run-7", 100) == "run-7-again100"
    assert first_id("run-7-again100") == first_id("run-7") == "run-7"
    assert first_id("run-again7-3") == "run-again7-3"

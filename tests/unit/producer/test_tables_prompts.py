import base64
import re
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_runs import requests_of, table_of

from gristmill.producer.batches.rows import BadLine, SkippedRow
from gristmill.producer.tables.request_maker import RequestMaker
from gristmill.producer.tables.spec import TableSpec, read_params, read_template
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import COMPLETIONS, Request

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"


def body_of(spec: TableSpec, **row: Any) -> Any:
    return RequestMaker(spec).body(row)


def messages_of(spec: TableSpec, **row: Any) -> Any:
    return body_of(spec, **row)["messages"]


def test_a_prompt_puts_the_values_of_columns_into_the_users_message() -> None:
    spec = TableSpec(prompt="Is {text} {{good}}? {stars} {tags}", system="Say {yes}.", model="m")
    assert body_of(spec, text="it", stars=5, tags=["a", None]) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Say {yes}."},
            {"role": "user", "content": 'Is it {good}? 5 ["a",null]'},
        ],
    }


def test_a_column_may_have_any_name_that_a_field_can_hold() -> None:
    assert messages_of(TableSpec(prompt="{a b.c[0]}"), **{"a b.c[0]": "x"})[0]["content"] == "x"


@pytest.mark.parametrize("prompt", ["{}", "{a", "a}", "{a!r}", "{a:>9}"])
def test_a_prompt_with_more_than_columns_is_refused(prompt: str) -> None:
    with pytest.raises(InvalidRequest, match="--prompt"):
        RequestMaker(TableSpec(prompt=prompt))


def test_a_template_without_blocks_is_the_users_message() -> None:
    spec = TableSpec(template="{% if n > 1 %}Many {{ text }}{% endif %}\n")
    assert messages_of(spec, n=2, text="x") == [{"role": "user", "content": "Many x"}]


def test_a_template_renders_the_messages_of_its_blocks_in_their_order() -> None:
    template = """
    {% call message("system") %} Be brief. {% endcall %}
    {% for example in examples %}
      {% call message("user") %}{{ example.q }}{% endcall %}
      {% call message("assistant") %}{{ example.a }}{% endcall %}
    {% endfor %}
    {% call message("user") %}{{ text }} {{ {"k": text} | tojson }}{% endcall %}
    """
    said = messages_of(TableSpec(template=template), text="é", examples=[{"q": "1", "a": "2"}])
    assert [(message["role"], message["content"]) for message in said] == [
        ("system", "Be brief."),
        ("user", "1"),
        ("assistant", "2"),
        ("user", 'é {"k": "é"}'),
    ]


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ('{% call message("user") %}a{% endcall %} b', "outside of messages"),
        ('{% if x %}{% call message("user") %}a{% endcall %}{% endif %}', "has no message"),
        ('{% call message("robot") %}a{% endcall %}', "role 'robot' is not known"),
        ("{{ x.a.b }}", "the template fails"),
        ("{{ x.__class__.__mro__ }}", "the template fails"),
        ("{{ 1 / x }}", "the template fails"),
    ],
)
def test_a_template_that_fails_on_a_row_names_the_reason(template: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        body_of(TableSpec(template=template), x=0)


@pytest.mark.parametrize("template", ["{% if %}", "{{ message }}", "{% call x %}"])
def test_a_wrong_template_is_refused_before_any_row(template: str) -> None:
    with pytest.raises(InvalidRequest, match="--template"):
        RequestMaker(TableSpec(template=template))


def test_the_whole_row_of_a_template_may_have_nulls() -> None:
    maker = RequestMaker(TableSpec(template="{{ text }} {{ row.title or 'none' }}"))
    assert (maker.used, maker.columns) == (("text",), None)
    row = {"text": "x", "title": None}
    assert maker.null_in(row) is None
    assert maker.body(row)["messages"][0]["content"] == "x none"


def test_a_limit_of_tokens_stands_in_each_body_and_in_what_a_resume_compares() -> None:
    spec = TableSpec(prompt="Is {x}?", params={"temperature": 1}, max_tokens=3)
    body = body_of(spec, x="it")
    assert (body["max_tokens"], body["temperature"]) == (3, 1)
    assert spec.limit == ("max_tokens", 3)
    assert spec.facts()["max_tokens"] == 3


def test_completions_get_the_prompt_as_text() -> None:
    spec = TableSpec(prompt="Once {x}", endpoint=COMPLETIONS, params={"max_tokens": 3})
    assert body_of(spec, x="upon") == {"prompt": "Once upon", "max_tokens": 3}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "needs a prompt"),
        ({"prompt": "{a}", "template": "b"}, "not both"),
        ({"prompt": "{a}", "endpoint": "/v1/embeddings"}, "use /v1/chat/completions or"),
        ({"prompt": "{a}", "endpoint": COMPLETIONS, "system": "s"}, "takes one text"),
        ({"prompt": "{a}", "params": {"messages": []}}, "--params has 'messages'"),
        ({"prompt": "{a}", "params": {"model": "x"}, "model": "y"}, "leave one out"),
        (
            {"prompt": "{a}", "params": {"max_tokens": 2}, "max_tokens": 3},
            "--params has 'max_tokens', too",
        ),
        (
            {"prompt": "{a}", "params": {"max_completion_tokens": 2}, "max_tokens": 3},
            "--params has 'max_completion_tokens', too; leave it or --max-tokens out",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        TableSpec(**fields)


@pytest.mark.parametrize(
    ("params", "dedupe", "is_deduping"),
    [({}, None, False), ({"temperature": 0}, None, True), ({"temperature": 0.0}, None, True),
     ({"temperature": False}, None, False), ({"temperature": 1}, True, True), ({"temperature": 0}, False, False)],
)  # fmt: skip
def test_identical_requests_run_once_at_temperature_0_or_on_demand(
    params: dict[str, Any], dedupe: bool | None, is_deduping: bool
) -> None:
    assert TableSpec(prompt="{a}", params=params, dedupe=dedupe).is_deduping is is_deduping


def test_images_are_urls_or_bytes_before_the_text_of_the_user() -> None:
    spec = TableSpec(prompt="What is {x}?", image="picture")
    for value, url in [
        ("https://example.org/a.png", "https://example.org/a.png"),
        (PNG, "data:image/png;base64," + base64.b64encode(PNG).decode()),
        (
            {"bytes": PNG, "path": "a.png"},
            "data:image/png;base64," + base64.b64encode(PNG).decode(),
        ),
        ({"bytes": None, "path": "http://example.org/b"}, "http://example.org/b"),
    ]:
        assert messages_of(spec, x="it", picture=value)[-1]["content"] == [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": "What is it?"},
        ]


@pytest.mark.parametrize(
    "value", ["file:///etc/passwd", "a.png", "http://me:pw@host/x", b"no image", 7]
)
def test_an_image_that_no_worker_may_fetch_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match="column 'picture'"):
        body_of(TableSpec(prompt="{x}", image="picture"), x="it", picture=value)


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_a_missing_column_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    table = table_of(parquet(tmp_path / "in.parquet", text=["a"], stars=[1]))
    with pytest.raises(
        InvalidRequest, match=r"--prompt names the column 'txt'.*did you mean 'text'\?"
    ):
        RequestMaker(TableSpec(prompt="{txt}")).check_columns(table)
    with pytest.raises(InvalidRequest, match=r"--image names the column 'photo'"):
        RequestMaker(TableSpec(prompt="{text}", image="photo")).check_columns(table)
    with pytest.raises(InvalidRequest, match="names no column"):
        RequestMaker(TableSpec(prompt="Hello")).check_columns(table)


def test_a_csv_with_another_separator_is_named(tmp_path: Path) -> None:
    for name, separator in [("in.csv", ";"), ("in.csv", "\t"), ("in.tsv", ",")]:
        (tmp_path / name).write_text(f"id{separator}text\n1{separator}a\n")
        told = re.escape(
            f"the file seems to separate its columns by {separator!r}: write it with commas"
        )
        with pytest.raises(InvalidRequest, match=told) as refused:
            RequestMaker(TableSpec(prompt="{text}")).check_columns(table_of(tmp_path / name))
        assert "did you mean" not in str(refused.value)


def test_an_empty_jsonl_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").touch()
    with pytest.raises(InvalidRequest, match=r"in\.jsonl has no rows; name an input with rows$"):
        RequestMaker(TableSpec(prompt="{text}")).check_columns(table_of(tmp_path / "in.jsonl"))


def test_a_column_of_an_unfit_type_is_named(tmp_path: Path) -> None:
    table = table_of(parquet(tmp_path / "in.parquet", data=[b"a"], n=[1]))
    with pytest.raises(InvalidRequest, match=r"in\.parquet: column 'data' is binary"):
        RequestMaker(TableSpec(prompt="{data}")).check_columns(table)
    with pytest.raises(InvalidRequest, match=r"column 'n' is int64; --image"):
        RequestMaker(TableSpec(prompt="{data}", image="n")).check_columns(
            table_of(parquet(tmp_path / "in.parquet", data=["a"], n=[1]))
        )


def test_a_null_is_an_error_row_or_skipped(tmp_path: Path) -> None:
    table = table_of(parquet(tmp_path / "in.parquet", text=["a", None], other=[None, 1]))
    first, second = requests_of(table, TableSpec(prompt="{text}"), tmp_path)
    assert isinstance(first, Request)
    assert isinstance(second, BadLine)
    assert str(second).endswith(
        "in.parquet row 2: column 'text' is null; fill it, or leave such rows unanswered with --skip-null"
    )
    skipped = requests_of(table, TableSpec(prompt="{text}", skip_null=True), tmp_path)
    assert skipped[1] == SkippedRow(2)


def test_a_row_over_the_limit_is_named_with_its_file_and_row(tmp_path: Path) -> None:
    table = table_of(parquet(tmp_path / "in.parquet", text=["a", "b" * 2**20]))
    _, bad = requests_of(table, TableSpec(prompt="{text}"), tmp_path)
    assert "in.parquet row 2: its body has 1,04" in str(bad)


def test_params_and_templates_are_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "params.json"
    path.write_bytes(orjson.dumps({"temperature": 0}))
    assert read_params(path) == {"temperature": 0}
    for raw, told in [(b"{", "is no JSON"), (b"[]", "is no object")]:
        path.write_bytes(raw)
        with pytest.raises(InvalidRequest, match=told):
            read_params(path)
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        read_template(path)
    with pytest.raises(InvalidRequest, match="No such file"):
        read_params(tmp_path / "none")


def test_a_column_of_a_row_comes_before_a_method_of_mappings() -> None:
    template = "{{ row.items }} {{ row.values }} {{ row.copy }} {{ row.inner.keys }}"
    row = {"items": "a", "values": 1, "copy": "c", "inner": {"keys": "k"}}
    assert messages_of(TableSpec(template=template), **row)[0]["content"] == "a 1 c k"
    assert messages_of(TableSpec(template="{{ row.items()|list }}"), a=1)[0]["content"] == (
        "[('a', 1)]"
    )


def test_a_column_with_the_name_of_a_function_is_refused_but_for_row(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"range": "far", "text": "a"}\n')
    table = table_of(tmp_path / "in.jsonl")
    with pytest.raises(InvalidRequest, match=r"'range', a function of Jinja .* write row\.range"):
        RequestMaker(TableSpec(template="{{ range }} {{ text }}")).check_columns(table)
    maker = RequestMaker(TableSpec(template="{{ row.range }} {{ text }}"))
    maker.check_columns(table)
    assert maker.body({"range": "far", "text": "a"})["messages"][0]["content"] == "far a"

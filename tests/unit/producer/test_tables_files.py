import datetime
import gzip
import os
import random
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from pyarrow import feather
from table_runs import RUN, answered, opened, run_table, table_of

from gristmill.producer.batches.rows import SkippedRow, skipped_row
from gristmill.producer.commands.submit_checks import refuse_bad_lines
from gristmill.producer.commands.submit_runs import LinesRun
from gristmill.producer.tables.answer_columns import AnswerColumns
from gristmill.producer.tables.answer_parts import AnswerParts
from gristmill.producer.tables.row_plan import PlanDraft
from gristmill.producer.tables.spec import TableSpec
from gristmill.producer.tables.table_files import find_files
from gristmill.producer.tables.table_input import TableReport
from gristmill.producer.tables.table_output import TableOutput
from gristmill.shared.errors import GristmillError, InvalidRequest
from gristmill.shared.request import Request

SPEC = TableSpec(prompt="{text}")
MOMENT = datetime.datetime(2026, 11, 29, 12, 30, tzinfo=datetime.UTC)


def typed(num_rows: int = 4) -> Any:
    """Return a table with a column of each type that people lose."""
    count = range(num_rows)
    return pa.table(
        {
            "text": [f"row {number}" for number in count],
            "ns": pa.array([MOMENT] * num_rows, pa.timestamp("ns", "Europe/Berlin")),
            "day": [None if number == 1 else MOMENT.date() for number in count],
            "price": pa.array([Decimal("1.10")] * num_rows, pa.decimal128(10, 2)),
            "tags": [[1, None], [], None, [3]][:num_rows] + [[4]] * (num_rows - 4),
            "raw": pa.array([b"\xff\x00"] * num_rows, pa.binary()),
            "nested": [{"a": [{"b": number}], "c": None} for number in count],
            "small": pa.array(count, pa.int8() if num_rows < 100 else pa.int32()),
            "word": pa.array(["x"] * num_rows).dictionary_encode(),
            "flag": [True, False, None, True][:num_rows] + [True] * (num_rows - 4),
        }
    )


def lines(path: Path, *rows: object) -> Path:
    raw = [row if isinstance(row, bytes) else orjson.dumps(row) for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    return path


@pytest.mark.parametrize("name", ["in.parquet", "in.feather", "in.arrow"])
def test_all_types_survive_the_way_to_parquet(tmp_path: Path, name: str) -> None:
    table, source = typed(), tmp_path / name
    if name == "in.parquet":
        pq.write_table(table, source)
    elif name == "in.feather":
        feather.write_feather(table, source)
    else:
        with pa.ipc.new_stream(source, table.schema) as stream:  # what `datasets` writes
            stream.write_table(table, max_chunksize=3)
    run_table([source], tmp_path / "out.parquet", SPEC)
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.select(table.column_names).equals(table)
    assert written.column_names[10:] == [
        "answer", "prompt_tokens", "output_tokens", "finish_reason", "error"
    ]  # fmt: skip
    assert written.to_pylist()[1]["answer"] == "re: row 1"


def test_pandas_polars_and_duckdb_read_an_output(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": ["a", "b"], "at": [pd.Timestamp(MOMENT)] * 2}, index=[7, 9])
    frame.to_parquet(tmp_path / "in.parquet")
    path = tmp_path / "out.parquet"
    run_table([tmp_path / "in.parquet"], path, SPEC)
    again = pd.read_parquet(path)
    pd.testing.assert_frame_equal(again[["text", "at"]], frame)
    assert list(again["answer"]) == ["re: a", "re: b"]
    assert pl.read_parquet(path)["answer"].to_list() == ["re: a", "re: b"]
    query = f"SELECT text, answer, error FROM '{path}' WHERE output_tokens = 2"  # noqa: S608
    assert duckdb.sql(query).fetchall() == [("a", "re: a", None), ("b", "re: b", None)]


def test_csv_keeps_its_values_as_they_stand(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text('zip,text,note\n00123,"a, ""b""\nc",\n1e3,,""\n')
    run_table([source], tmp_path / "out.csv", SPEC)
    read = pd.read_csv(tmp_path / "out.csv", dtype=str, keep_default_na=False)
    assert list(read["zip"]) == ["00123", "1e3"]
    assert list(read["text"]) == ['a, "b"\nc', ""]
    assert list(read["answer"]) == ['re: a, "b"\nc', ""]
    assert read["error"][1].startswith("null_value: ")


def test_values_without_a_form_in_csv_become_json(tmp_path: Path) -> None:
    pq.write_table(typed(), tmp_path / "in.parquet")
    run_table([tmp_path / "in.parquet"], tmp_path / "out.csv", SPEC)
    row = pd.read_csv(tmp_path / "out.csv").iloc[0]
    assert (row["tags"], row["raw"], row["nested"]) == (
        "[1,null]",
        "/wA=",
        '{"a":[{"b":0}],"c":null}',
    )


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz", "in.jsonl.zst", "in.ndjson"])
def test_jsonl_keeps_each_row_as_it_is(tmp_path: Path, name: str) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "a", "id": 1},
        {"text": "b", "id": "x", "more": {"k": [1, {}]}},
    ]
    raw = lines(tmp_path / "plain", *rows).read_bytes()
    source = tmp_path / name
    if name.endswith(".zst"):
        with pa.output_stream(source, compression="zstd") as stream:
            stream.write(raw)
    else:
        source.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    run_table([source], tmp_path / "out.jsonl", SPEC)
    written = [orjson.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert [
        {name: row[name] for name in row if name in ("text", "id", "more")} for row in written
    ] == rows
    assert written[1]["answer"] == "re: b"


def test_jsonl_gets_types_for_parquet(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", {"text": "a", "n": 1, "r": {"x": 1}})
    lines(tmp_path / "b.jsonl", {"n": 2.5, "text": "b", "r": {"y": [None]}}, {"text": "c"})
    run_table([tmp_path / "*.jsonl"], tmp_path / "out.parquet", SPEC)
    assert pq.read_table(tmp_path / "out.parquet").select(["text", "n", "r"]).to_pylist() == [
        {"text": "a", "n": 1.0, "r": {"x": 1, "y": None}},
        {"text": "b", "n": 2.5, "r": {"x": None, "y": [None]}},
        {"text": "c", "n": None, "r": None},
    ]


def test_a_column_of_two_types_is_named_with_its_row(tmp_path: Path) -> None:
    source = lines(tmp_path / "in.jsonl", *[{"text": "a", "n": 1}] * 2_000, {"text": "b", "n": "x"})
    with pytest.raises(
        InvalidRequest, match=r"in\.jsonl row 2,001: column 'n' is str here and int64 before"
    ):
        table_of(source)


@pytest.mark.parametrize(
    ("name", "raw", "told"),
    [
        ("in.jsonl", b'{"text": "a"}\n{"text": \n', r"in\.jsonl row 2 is no JSON"),
        ("in.jsonl", b'{"text": "a"}\n[1]\n', r"in\.jsonl row 2 is no JSON object"),
        ("in.jsonl", b"PAR1....", r"in\.jsonl is a Parquet file"),
        (
            "in.parquet",
            b"no parquet",
            r"in\.parquet cannot be read as parquet: .*[^.]; correct the",
        ),
        ("in.feather", b"ARROW1..", r"in\.feather cannot be read as arrow"),
        (
            "in.csv",
            b"a,text\n1,2\n1,2,3\n",
            r"in\.csv data row 2 has 3 fields, and the header has 2",
        ),
        ("in.csv", b"text,text\n1,2\n", r"several columns 'text'"),
        ("in.csv", b"text\na\n\xff\n", r"in\.csv data row 2 is not UTF-8; convert .*iconv"),
        (
            "in.jsonl.gz",
            gzip.compress(b'{"text": "a"}\n' * 9, mtime=0)[:-12],
            r"in\.jsonl\.gz cannot be read",
        ),
    ],
)
def test_a_damaged_file_is_named_before_anything_runs(
    tmp_path: Path, name: str, raw: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(InvalidRequest, match=told):
        list(table_of(tmp_path / name).chunks())


def stray(row: int, text: str) -> bytes:
    """Return a CSV of 200 rows with a stray row."""
    rows = [f"{number},text {number}\n" for number in range(1, 201)]
    rows[row - 1] = text
    return ("id,text\n" + "".join(rows)).encode()


@pytest.mark.parametrize("name", ["in.csv", "in.csv.gz", "in.csv.zst"])
@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (stray(151, '151,"text 151\n'), "data row 151"),
        (stray(151, '"151,text 151\n'), "data row 151"),
        (stray(200, '200,"text 200'), "data row 200"),
        (stray(3, '3,"two\nlines"\n4,"text 4\n'), "data row 4"),
        (b'text\n"a"\n"b\n', "data row 2"),
        (b'id,"text\n1,a\n2,b\n', "header"),
    ],
    ids=["last-field", "first-field", "last-row", "after-two-lines", "one-column", "header"],
)
def test_an_unclosed_quote_is_refused_with_its_row(
    tmp_path: Path, name: str, raw: bytes, place: str
) -> None:
    source = tmp_path / name
    compression = {".gz": "gzip", ".zst": "zstd"}.get(source.suffix)
    with pa.output_stream(source, compression=compression) as stream:
        stream.write(raw)
    with pytest.raises(InvalidRequest, match=rf"{name} {place} has an unclosed quote"):
        list(table_of(source).chunks())


def test_an_unclosed_quote_in_a_large_file_is_refused_with_its_row(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    rows = [f"{number},{'x' * 1_000}\n" for number in range(1, 20_001)]
    rows[149] = '150,"x\n'
    source.write_text("id,text\n" + "".join(rows))
    with pytest.raises(
        InvalidRequest, match=r"in\.csv data row 150 .*a quote in it is never closed"
    ):
        list(table_of(source).chunks())


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n\n"])
@pytest.mark.parametrize("block", ['1,"a, ""b""\nc"', '1,5" pipe', '1,"a\n"'])
def test_a_csv_with_fair_quotes_keeps_all_rows(tmp_path: Path, block: str, end: str) -> None:
    source = tmp_path / "in.csv"
    source.write_text("id,text\n" + block + "\n" + block + end, newline="")
    (chunk,) = table_of(source).chunks()
    assert [row["id"] for row in chunk.dicts(None)] == ["1", "1"]
    assert len({row["text"] for row in chunk.dicts(None)}) == 1


@pytest.mark.parametrize("raw", [b"id,text\n", b"id,text", b"", b"\n"])
def test_a_csv_without_rows_says_so(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "in.csv").write_bytes(raw)
    if raw.strip():
        assert list(table_of(tmp_path / "in.csv").chunks()) == []
        return
    with pytest.raises(InvalidRequest, match=r"in\.csv has no rows; name an input with rows"):
        table_of(tmp_path / "in.csv")


def test_a_damaged_row_group_is_found_also_in_a_column_that_no_prompt_uses(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    table = pa.table(
        {"text": ["a"] * 4_000, "other": [random.Random(n).random() for n in range(4_000)]}
    )
    pq.write_table(table, source, row_group_size=2_000, compression="zstd")
    place = pq.ParquetFile(source).metadata.row_group(1).column(1).data_page_offset
    raw = bytearray(source.read_bytes())
    raw[place : place + 400] = b"\xff" * 400
    source.write_bytes(raw)
    with (
        pytest.raises(
            InvalidRequest, match=r"in\.parquet cannot be read as parquet after row 2,000"
        ),
        opened(table_of(source), SPEC, tmp_path / "plan"),
    ):
        pass


def test_sources_are_paths_globs_folders_and_urls(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("b", "a"):
        pq.write_table(pa.table({"text": [name]}), tmp_path / "data" / f"{name}.parquet")
    (tmp_path / "data" / "README.md").write_text("not data")
    for source in ("data", "data/*.parquet"):
        found = find_files([f"{tmp_path}/{source}"])
        assert [Path(file.path).name for file in found] == ["a.parquet", "b.parquet"]
    (only,) = find_files([f"file://{tmp_path}/data/a.parquet"])
    assert next(iter(table_of(only.path).chunks())).dicts(None) == [{"text": "a"}]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("none.parquet", "no file 'none.parquet'"),
        ("none*.csv", "no file"),
        ("nosuch://a/b.csv", "cannot read 'nosuch://"),
        ("README.xyz", "not known by its extension"),
        ("in.parquet.gz", "not known by its extension"),
    ],
)
def test_a_source_that_is_no_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("README.xyz", "in.parquet.gz"):
        Path(name).write_text("x")
    with pytest.raises(InvalidRequest, match=told):
        find_files([source])


def test_files_of_one_table_have_the_same_columns_and_types_that_fit(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"text": ["a"], "n": pa.array([1], pa.int32())}), tmp_path / "a.parquet"
    )
    pq.write_table(pa.table({"n": [2**40], "text": ["b"]}), tmp_path / "b.parquet")
    run_table([tmp_path / "*.parquet"], tmp_path / "out.parquet", SPEC)
    written = pq.read_table(tmp_path / "out.parquet")
    assert written["n"].to_pylist() == [1, 2**40]
    (tmp_path / "out.parquet").unlink()
    pq.write_table(pa.table({"text": ["b"]}), tmp_path / "b.parquet")
    with pytest.raises(InvalidRequest, match=r"a\.parquet has a column 'n', .*b\.parquet has not"):
        table_of(tmp_path / "a.parquet", tmp_path / "b.parquet")
    pq.write_table(pa.table({"text": ["b"], "n": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(InvalidRequest, match=r"b\.parquet has other types"):
        table_of(tmp_path / "a.parquet", tmp_path / "b.parquet")


def test_an_added_column_that_is_there_already_is_refused_with_the_option() -> None:
    with pytest.raises(InvalidRequest, match=r"has a column 'error'.*--rename error=error_2"):
        AnswerColumns({}, ["text", "error"])
    told = r"columns 'answer', 'error', .*: --rename answer=answer_3 --rename error=error_2$"
    with pytest.raises(InvalidRequest, match=told):
        AnswerColumns({}, ["answer", "answer_2", "error"])
    columns = AnswerColumns({"error": "why", "answer": "label"}, ["text", "error"])
    assert columns.schema.names[0] == "label"
    assert columns.schema.names[-1] == "why"
    with pytest.raises(InvalidRequest, match="no added column has this name"):
        AnswerColumns({"nothing": "x"}, [])
    with pytest.raises(InvalidRequest, match="two added columns would be 'error'"):
        AnswerColumns({"answer": "error"}, [])


def backwards(entries: list[Any]) -> Sequence[Any]:
    return entries[::-1]


def test_rows_keep_their_order_whatever_finishes_first(tmp_path: Path) -> None:
    table = pa.table({"text": [str(number) for number in range(20_000)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=3_000)
    ran = run_table([tmp_path / "in.parquet"], tmp_path / "out.parquet", SPEC, order=backwards)
    written = pq.read_table(tmp_path / "out.parquet")
    assert written["text"].to_pylist() == table["text"].to_pylist()
    assert written["answer"].to_pylist() == [f"re: {number}" for number in range(20_000)]
    assert len(set(ran)) == 20_000
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in.parquet", "out.parquet", "out.parquet.run"
    ]  # fmt: skip


class Killed(Exception):
    pass


@pytest.mark.parametrize("extension", ["parquet", "csv", "jsonl"])
def test_a_resume_runs_no_finished_row_again(tmp_path: Path, extension: str) -> None:
    rows = [{"text": str(number % 900)} for number in range(1_000)]
    arrow_csv.write_csv(pa.Table.from_pylist(rows), tmp_path / "in.csv")
    spec = TableSpec(prompt="{text}", dedupe=True)
    output, left, seen = tmp_path / f"out.{extension}", [300], []

    def dies(request: Request) -> bytes:
        if not left[0]:
            raise Killed
        left[0] -= 1
        seen.append(request.id)
        return answered(request)

    with pytest.raises(Killed):
        run_table([tmp_path / "in.csv"], output, spec, answer=dies)
    journal = next((tmp_path / f"out.{extension}.parts").glob("*.jsonl"))
    journal.write_bytes(journal.read_bytes()[:-5])  # the last row is torn
    ran = run_table([tmp_path / "in.csv"], output, spec)
    assert (len(seen), len(ran)) == (300, 601)
    assert set(seen) & set(ran) == {seen[-1]}
    read = {"parquet": pd.read_parquet, "csv": pd.read_csv}.get(extension)
    frame = read(output) if read else pd.read_json(output, lines=True, dtype=False)
    assert list(frame["answer"]) == [f"re: {number % 900}" for number in range(1_000)]


def test_identical_rows_run_once(tmp_path: Path) -> None:
    lines(tmp_path / "in.jsonl", *[{"text": text, "n": n} for n, text in enumerate("abcabca")])
    spec = TableSpec(prompt="{text}", params={"temperature": 0})
    ran = run_table([tmp_path / "in.jsonl"], tmp_path / "out.parquet", spec)
    assert ran == ["run-1", "run-2", "run-3"]
    written = pq.read_table(tmp_path / "out.parquet")
    assert written["answer"].to_pylist() == [f"re: {text}" for text in "abcabca"]
    with opened(table_of(tmp_path / "in.jsonl"), spec, tmp_path / "plan") as (rows, report):
        assert report.num_copies == 4
        finished = bytearray(
            [0, 1, 1, 1, 1, 1, 0, 1]
        )  # a lost write: row 6 lacks the answer of row 3
        assert [number for number, _ in rows.entries(finished)] == [6]


def test_a_part_of_a_slow_row_waits_while_others_are_made(tmp_path: Path) -> None:
    schema = AnswerColumns({}, []).schema
    parts = AnswerParts(tmp_path, schema, 10, part_rows=3)
    parts.restore()
    for row in (10, 9, 7, 8, 2, 3, 6, 5, 4):
        parts.add({row: [str(row), 1, 1, "stop", None]})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0000000.jsonl", "0000001.parquet", "0000002.parquet", "0000003.parquet"
    ]  # fmt: skip
    parts.close()
    again = AnswerParts(tmp_path, schema, 10, part_rows=3)
    written = again.restore()
    assert (written.num_finished, written.finished[1]) == (9, 0)
    assert written.num_cut == 0
    again.add({1: [None, None, None, "length", "why"]})
    assert [row["answer"] for batch in again.batches() for row in batch.to_pylist()] == [
        None, *map(str, range(2, 11))
    ]  # fmt: skip
    restored = AnswerParts(tmp_path, schema, 10, part_rows=3).restore()
    assert (restored.example, restored.num_cut) == ("row 1: why", 1)


def test_an_input_that_is_written_during_the_run_is_not_merged(tmp_path: Path) -> None:
    source = lines(tmp_path / "in.jsonl", {"text": "a"})

    def writes(request: Request) -> bytes:
        lines(source, {"text": "a", "n": 1})
        return answered(request)

    with pytest.raises(InvalidRequest, match="was written during the run"):
        run_table([source], tmp_path / "out.jsonl", SPEC, answer=writes)
    lines(source, {"text": "a"})
    assert run_table([source], tmp_path / "out.jsonl", SPEC) == []


def test_rows_that_an_output_cannot_hold_are_refused_before_any_request(tmp_path: Path) -> None:
    empty = lines(tmp_path / "empty.jsonl", {"text": "a", "meta": {}})
    first = [{"text": "a", "n": 1}] * 1_023
    large = lines(
        tmp_path / "large.jsonl", *first, {"text": "b", "n": 2**53 + 1}, {"text": "c", "n": 0.5}
    )
    years = pa.array([0, 253_402_300_800], pa.timestamp("s"))
    pq.write_table(pa.table({"text": ["a", "b"], "at": years}), tmp_path / "years.parquet")
    for source, output, told in [
        (empty, "out.parquet", r"row 1 cannot be written as parquet: .*'meta'.*another format"),
        (large, "out.parquet", r"row 1,024 cannot be written as parquet: .*9007199254740993"),
        (
            tmp_path / "years.parquet",
            "out.jsonl",
            r"row 2 cannot be written as jsonl: date value out of range",
        ),
    ]:
        asked: list[Request] = []
        with pytest.raises(InvalidRequest, match=told):
            run_table([source], tmp_path / output, SPEC, answer=_noting(asked))
        assert not asked


def _noting(asked: list[Request]) -> Callable[[Request], bytes]:
    def answer(request: Request) -> bytes:
        asked.append(request)
        return answered(request)

    return answer


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """Serve a folder over HTTP, and return its URL."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_file_behind_http_that_was_written_has_another_version_and_digest(
    tmp_path: Path, web: str
) -> None:
    source = lines(tmp_path / "in.jsonl", {"text": "a"})
    table = table_of(f"{web}/in.jsonl")
    digest = table.fingerprint()
    table.check_unchanged()
    lines(source, {"text": "b"})
    os.utime(source, (1, 1))
    assert table.fingerprint() != digest
    with pytest.raises(InvalidRequest, match=r"in\.jsonl was written during the run"):
        table.check_unchanged()


@pytest.mark.parametrize(("num_rows", "how"), [(2, "fewer"), (4, "more")])
def test_an_input_with_other_rows_than_at_the_begin_is_not_merged(
    tmp_path: Path, num_rows: int, how: str
) -> None:
    table = table_of(lines(tmp_path / "in.jsonl", *[{"text": "a"}] * 3))
    with TableOutput(tmp_path / "out.csv", table, AnswerColumns({}, table.columns)) as output:
        output.plan_path(is_new=True).touch()
        output.begin(RUN)
        output.keep_whole_rows(RUN.run, 3)
        for number in (1, 2, 3):
            output.append(skipped_row(RUN.run, SkippedRow(number)))
        lines(tmp_path / "in.jsonl", *[{"text": "a"}] * num_rows)
        changed = table_of(tmp_path / "in.jsonl")
        output._table = changed  # a storage that does not tell versions
        with pytest.raises(InvalidRequest, match=f"has {how} rows than when the run began"):
            output.finish({})


def test_a_full_disk_while_the_plan_is_made_is_an_error_in_words(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with PlanDraft(tmp_path / "plan.sqlite") as draft:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**15, hard))  # no file may grow further
        try:
            with pytest.raises(GristmillError, match=r"plan\.sqlite.*make room there, then repeat"):
                draft.add({row: row.to_bytes(16) for row in range(1, 5_000)})
                draft.finish({})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_resumed_run_tells_the_number_of_bad_rows_without_a_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = TableReport.restored({"num_lines": 10, "num_bad": 3})
    run = LinesRun(Path("in.csv"), "in.csv")
    refuse_bad_lines(report, run, source="in.csv", is_lenient=True)
    assert capsys.readouterr().err.splitlines()[-1].endswith("3 of 10 lines cannot be submitted")


def test_an_empty_input_is_named_once() -> None:
    run = LinesRun(Path("in.csv"), "in.csv")
    with pytest.raises(InvalidRequest, match=r"^in\.csv has no requests; write one"):
        refuse_bad_lines(TableReport(), run, source="in.csv", is_lenient=False)


def test_a_folder_of_parts_that_belongs_to_no_run_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    table = table_of(tmp_path / "in.jsonl")
    columns, path = AnswerColumns({}, table.columns), tmp_path / "out.csv"
    with TableOutput(path, table, columns) as output:
        assert output.begun_run(is_forced=False) is None
    assert not (tmp_path / "out.csv.parts").exists()
    (tmp_path / "out.csv.parts").mkdir()
    (tmp_path / "out.csv.parts" / "plan.new.sqlite.draft").write_text("left by a killed process")
    with TableOutput(path, table, columns) as output:
        assert output.begun_run(is_forced=False) is None
    answers = tmp_path / "out.csv.parts" / "0000000.jsonl"
    answers.parent.mkdir()
    answers.write_text("{}\n")
    with (
        TableOutput(path, table, columns) as output,
        pytest.raises(InvalidRequest, match=r"out\.csv\.parts has files, and .*out\.csv\.run"),
    ):
        output.begun_run(is_forced=False)
    assert answers.exists()


def test_a_wide_file_is_read_at_once(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(50_000)]
    (tmp_path / "wide.csv").write_text(f"{','.join(names)}\n{','.join(['1'] * len(names))}\n")
    assert len(table_of(tmp_path / "wide.csv").columns) == 50_000

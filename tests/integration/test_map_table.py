"""`map_table` on a true server, with the stub engine in a worker process."""

import asyncio
import datetime
import decimal
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal
from pydantic import BaseModel
from queues import claim, open_worker, settlement
from workers import STUB, worker_process

from gristmill.producer import (
    InvalidRequest,
    NotServed,
    QueueSettings,
    RedisUnreachable,
    Request,
    first_contact,
    map_table,
    map_table_async,
)
from gristmill.shared.connection import connect
from gristmill.shared.key_scan import scan_names
from gristmill.shared.queue import Queue
from gristmill.shared.results import response_outcome

ANSWERS = ["answer", "prompt_tokens", "output_tokens", "finish_reason", "error"]
SHORT = {"max_tokens": 2}

TYPES = pa.table(
    {
        "text": pa.array(["a", None, "c"]),
        "moment": pa.array([1, None, 3], pa.timestamp("ns", "Europe/Berlin")),
        "day": pa.array([datetime.date(2026, 1, 2), None, None]),
        "list": pa.array([[1, 2], [], None], pa.list_(pa.int32())),
        "record": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]),
        "price": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")]),
        "raw": pa.array([b"\x00\xff", None, b""]),
        "word": pa.array(["x", "y", "x"]).dictionary_encode(),
        "nothing": pa.nulls(3),
    },
    metadata={"origin": "test"},
)


class OtherKind:
    """Stands for any library that exports Arrow streams."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.fixture(scope="module")
def settings(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueSettings]:
    """A queue that one worker serves for all tests of this module, whose event loops may all be blocked."""
    log = tmp_path_factory.mktemp("map_table") / "log"
    queue = f"test-{uuid4().hex[:12]}"
    started, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        redis = connect(redis_url)
        async with worker_process(STUB, redis_url, Queue(redis, queue), log):
            started.set()
            await asyncio.to_thread(ended.wait)
        await redis.aclose()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(30)
    yield QueueSettings(redis_url=redis_url, queue=queue)
    ended.set()
    thread.join()


def results_left(settings: QueueSettings) -> list[str]:
    async def names() -> list[str]:
        redis = connect(settings.redis_url.get_secret_value())
        queue = Queue(redis, settings.queue)
        found = [name async for some in scan_names(queue, "result") for name in some]
        await redis.aclose()
        return found

    return asyncio.run(names())


def counters(settings: QueueSettings) -> Mapping[str, int]:
    async def read() -> Mapping[str, int]:
        redis = connect(settings.redis_url.get_secret_value())
        found = (await Queue(redis, settings.queue).stats()).counters
        await redis.aclose()
        return found

    return asyncio.run(read())


def depth(settings: QueueSettings) -> int:
    found = counters(settings)
    return found.get("queued", 0) + found.get("in_flight", 0)


def num_submitted(settings: QueueSettings) -> int:
    return counters(settings).get("submitted", 0)


def test_pandas_keeps_its_index_and_types_and_gets_the_answers(settings: QueueSettings) -> None:
    frame = pd.DataFrame(
        {
            "text": ["good", None, "bad"],
            "moment": pd.to_datetime(["2026-01-01"] * 3, utc=True),
            "kind": pd.Categorical(["x", "y", "x"]),
        },
        index=pd.Index([7, 3, 3], name="key"),
    )
    before = frame.copy()
    answered = map_table(frame, "Say {text}", params=SHORT, settings=settings)
    assert_frame_equal(frame, before)
    assert_frame_equal(answered[list(frame.columns)], frame)
    assert list(answered.columns) == [*frame.columns, *ANSWERS]
    assert answered["answer"].to_list()[::2] == ["Say good", "Say bad"]
    assert str(answered["prompt_tokens"].dtype) == "Int64"
    assert answered["error"].isna().to_list() == [True, False, True]
    assert answered["error"].iloc[1] == (
        "null_value: row 2: column 'text' is null; fill it, or leave such rows unanswered with skip_null=True"
    )
    assert results_left(settings) == []


def test_polars_keeps_its_types(settings: QueueSettings) -> None:
    frame = pl.DataFrame(
        {"text": ["a", "b"], "e": pl.Series(["x", "y"], dtype=pl.Enum(["x", "y"])), "l": [[1], []]}
    )
    answered = map_table(frame, "{text}", params=SHORT, settings=settings)
    assert answered.select(frame.columns).equals(frame)
    assert answered.schema["e"] == frame.schema["e"]
    assert answered.columns == [*frame.columns, *ANSWERS]
    assert answered["answer"].to_list() == ["a a", "b b"]


def test_arrow_keeps_every_type_and_its_chunks_and_metadata(settings: QueueSettings) -> None:
    table = pa.concat_tables([TYPES.slice(2), TYPES])
    answered = map_table(table, "{text}", params=SHORT, settings=settings, skip_null=True)
    assert answered.select(table.column_names).equals(table, check_metadata=True)
    assert answered.column_names == [*table.column_names, *ANSWERS]
    assert answered["answer"].to_pylist() == ["c c", "a a", None, "c c"]
    assert answered["error"].null_count == 4


@pytest.mark.parametrize("kind", ["reader", "batch", "other", "duckdb"])
def test_other_kinds_become_a_table_of_arrow(kind: str, settings: QueueSettings) -> None:
    table = pa.table({"text": ["a", "b"]})
    kinds = {
        "reader": table.to_reader,
        "batch": lambda: table.to_batches()[0],
        "other": lambda: OtherKind(table),
        "duckdb": lambda: duckdb.sql("SELECT * FROM (VALUES ('a'), ('b')) AS t(text)"),
    }
    answered = map_table(kinds[kind](), "{text}", params=SHORT, settings=settings)
    assert isinstance(answered, pa.Table)
    assert answered["answer"].to_pylist() == ["a a", "b b"]


def test_no_rows_give_no_rows(settings: QueueSettings) -> None:
    answered = map_table(
        pd.DataFrame({"text": pd.Series([], dtype=str)}), "{text}", settings=settings
    )
    assert list(answered.columns) == ["text", *ANSWERS]
    assert len(answered) == 0


async def test_a_running_loop_does_not_matter_and_the_asynchronous_form_lets_it_run(
    settings: QueueSettings,
) -> None:
    table = pa.table({"text": ["a"]})
    first = map_table(table, "{text}", params=SHORT, settings=settings)
    steps = 0

    async def count() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    many = [map_table_async(table, "{text}", params=SHORT, settings=settings) for _ in range(2)]
    answered = await asyncio.gather(*many)
    counting.cancel()
    assert first.equals(answered[0])
    assert first.equals(answered[1])
    assert steps > 100


def test_a_function_makes_requests_and_may_leave_rows_out(settings: QueueSettings) -> None:
    called = []

    def make(row: dict[str, Any]) -> Any:
        called.append(row["n"])
        if row["n"] == 0:
            return None
        if row["n"] == 1:
            return {"prompt": "one", "max_tokens": 1}
        if row["n"] == 2:
            body = {"messages": [{"role": "user", "content": "two"}], "max_tokens": 3}
            return Request.from_body(body, priority="high", tenant="docs", id="mine")
        return {"no": "prompt"}

    frame = pl.DataFrame({"n": range(4)})
    answered = map_table(frame, request=make, params={"max_tokens": 2}, settings=settings)
    assert called == [0, 1, 2, 3]
    assert answered["answer"].to_list()[:3] == [None, "one", "two two two"]
    assert answered["error"].to_list()[:3] == [None, None, None]
    assert "its endpoint is not known" in answered["error"][3]


def test_identical_requests_run_once(settings: QueueSettings) -> None:
    def make(row: dict[str, Any]) -> dict[str, Any]:
        return {"prompt": row["text"], "temperature": row["t"], "max_tokens": 1}

    frame = pl.DataFrame({"text": ["a", "a", "a", "a"], "t": [0, 1, 0, 1]})
    for options in ({"prompt": "{text}", "params": {"temperature": 0}}, {"request": make}):
        before = num_submitted(settings)
        answered = map_table(frame, settings=settings, **options)
        expected = 1 if "prompt" in options else 3  # each of the two at temperature 1 runs
        assert num_submitted(settings) - before == expected
        assert answered["answer"].n_unique() == 1
        assert answered["answer"].null_count() == 0


def test_template_system_and_names(settings: QueueSettings, tmp_path: Path) -> None:
    template = tmp_path / "x.jinja"
    template.write_text("{{ text }}{% if row.more %} {{ row.more }}{% endif %}")
    frame = pd.DataFrame({"text": ["a", "b"], "more": ["x", None], "answer": ["-", "-"]})
    for given in (template, template.read_text()):
        answered = map_table(
            frame, template=given, params=SHORT, rename={"answer": "label"}, settings=settings
        )
        assert answered["label"].to_list() == ["a x", "b b"]


class Review(BaseModel):
    label: str


def test_a_schema_gives_columns_and_asks_a_cut_answer_again(settings: QueueSettings) -> None:
    frame = pl.DataFrame({"text": ['{"label":"good"}', "no json"]})
    for schema in (Review, Review.model_json_schema()):
        answered = map_table(
            frame,
            "{text}",
            params={"max_tokens": 1},
            schema=schema,
            parse="json",
            settings=settings,
        )
        assert answered["label"].to_list() == ["good", None]
        assert answered["answer"].to_list() == ['{"label":"good"}', "no json"]  # 1 token, then 2
        assert answered["error"][0] is None
        assert answered["error"][1].endswith("raise max_tokens")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prompt": "{txt}"}, "prompt names the column 'txt', which the table does not have; did you mean 'text'?"),
        ({"prompt": "{text}", "rename": {"answer": "text"}}, "another name: rename={'answer': 'text_2'}"),
        ({"prompt": "{text}", "rename": {"x": "y"}}, "rename={'x': '...'}: no added column has this name"),
        ({"prompt": "{text}", "skipnull": True}, "did you mean 'skip_null'?"),
        ({"prompt": "{text}", "template": "{{ text }}"}, "in one way"),
        ({}, "say what to ask for each row"),
        ({"prompt": lambda row: row}, "a function goes to request="),
        ({"request": "text"}, "request is a str; it is a function"),
        ({"request": dict, "system": "x"}, "system goes with prompt or template"),
        ({"request": lambda _: 1}, "row 1: request returned int;"),
        ({"request": lambda _: {"prompt": {1}}}, "row 1: request returned a body that has no JSON"),
        ({"prompt": "{text}", "params": {"messages": []}}, "params has 'messages', which prompt makes"),
        ({"prompt": "{text}", "params": {"x": {1}}}, "params has a value that has no JSON"),
        ({"prompt": "{text}", "priority": "urgent"}, "use high, normal or low"),
        ({"prompt": "{text}", "window": 0}, "window is 0"),
        ({"prompt": "{text}", "schema": dict}, "subclass of BaseModel"),
        ({"prompt": "{text}", "schema": Review, "parse": "xml"}, "parse is 'xml'; use json, or leave it out"),
        ({"prompt": "{text}", "parse": "json"}, "parse='json' needs schema, whose properties become columns"),
    ],
    ids=range(18),
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_before_anything_is_submitted(
    options: dict[str, Any], told: str, settings: QueueSettings
) -> None:
    before = num_submitted(settings)
    with pytest.raises(InvalidRequest) as caught:
        map_table(pl.DataFrame({"text": ["a"]}), settings=settings, **options)
    assert told in str(caught.value)
    assert num_submitted(settings) == before


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ([{"text": "a"}], "a list is no table"),
        (pl.LazyFrame({"text": ["a"]}), "a LazyFrame is no table"),
        (pd.DataFrame({"text": [1, "a"]}, dtype=object), "the DataFrame cannot be read as Arrow"),
        (pa.table([["a"], ["b"]], names=["text", "text"]), "several columns 'text'"),
    ],
    ids=["list", "lazy", "mixed", "twice"],
)
def test_what_is_no_table_is_refused(data: Any, told: str, settings: QueueSettings) -> None:
    with pytest.raises(InvalidRequest, match=told):
        map_table(data, "{text}", settings=settings)


def test_an_error_of_the_function_names_the_row(settings: QueueSettings) -> None:
    with pytest.raises(KeyError) as caught:
        map_table(pl.DataFrame({"text": ["a"]}), request=lambda row: row["txt"], settings=settings)
    assert caught.value.__notes__ == ["request was called with row 1"]


def test_a_model_that_nobody_serves_is_an_error(settings: QueueSettings) -> None:
    frame = pl.DataFrame({"text": ["a", "b"]})
    with pytest.raises(NotServed, match="serves model 'other'"):
        map_table(frame, "{text}", model="other", settings=settings)

    def make(row: dict[str, Any]) -> dict[str, Any]:
        return {"prompt": "x", "max_tokens": 1} | ({"model": "other"} if row["text"] == "a" else {})

    answered = map_table(frame, request=make, settings=settings)
    assert answered["error"][0].startswith("model_not_found: row 1: no worker")
    assert answered["answer"][1] == "x"


def test_an_error_of_a_row_keeps_the_words_of_the_user(settings: QueueSettings) -> None:
    """A command line in a row stays as it is, also where it reads like an option of Gristmill."""
    model = "--model 'x' --skip-null"
    answered = map_table(
        pl.DataFrame({"model": [model]}),
        request=lambda row: {"prompt": "x", "model": row["model"]},
        settings=settings,
    )
    assert model in answered["error"][0]


def test_a_redis_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_contact, "FIRST_ANSWER_S", 0.2)
    settings = QueueSettings(redis_url="redis://:secret@127.0.0.1:1/0")
    with pytest.raises(RedisUnreachable):
        map_table(pl.DataFrame({"text": ["a"]}), "{text}", settings=settings)


@pytest.fixture
def unserved(settings: QueueSettings) -> QueueSettings:
    """A queue without workers."""
    return settings.model_copy(update={"queue": f"test-{uuid4().hex[:12]}"})


MANY = pa.table({"text": [str(number) for number in range(300)]})


async def test_a_call_that_is_cancelled_cancels_its_requests(unserved: QueueSettings) -> None:
    call = asyncio.create_task(map_table_async(MANY, "{text}", settings=unserved))
    while await asyncio.to_thread(depth, unserved) < MANY.num_rows:
        await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await asyncio.to_thread(depth, unserved) == 0
    assert await asyncio.to_thread(results_left, unserved) == []


async def test_a_call_that_is_cancelled_waits_for_its_function(unserved: QueueSettings) -> None:
    started, gate, called = threading.Event(), threading.Event(), []

    def make(row: dict[str, Any]) -> dict[str, Any]:
        started.set()
        assert gate.wait(30)
        called.append(row["n"])
        return {"prompt": "x"}

    call = asyncio.create_task(
        map_table_async(pa.table({"n": [1, 2]}), request=make, settings=unserved)
    )
    assert await asyncio.to_thread(started.wait, 30)
    call.cancel()
    asyncio.get_running_loop().call_later(0.5, gate.set)
    with pytest.raises(asyncio.CancelledError):
        await call
    assert called == [1, 2]
    assert await asyncio.to_thread(num_submitted, unserved) == 0


async def test_a_cancelled_call_deletes_cut_answers_that_are_asked_again(
    unserved: QueueSettings,
) -> None:
    call = asyncio.create_task(
        map_table_async(
            pa.table({"text": ["a"]}),
            "{text}",
            schema=Review,
            params={"max_tokens": 1},
            settings=unserved,
        )
    )
    while await asyncio.to_thread(depth, unserved) < 1:
        await asyncio.sleep(0.02)
    redis = connect(unserved.redis_url.get_secret_value())
    queue = Queue(redis, unserved.queue)
    (item,) = await claim(queue, await open_worker(queue, "w"))
    choice = b'{"message":{"content":"{"},"finish_reason":"length"}'
    cut = response_outcome(item.attempt, "w", 200, b'{"choices":[%s]}' % choice)
    await queue.ack("w", [replace(settlement(item), outcome=cut)])
    await redis.aclose()
    while await asyncio.to_thread(num_submitted, unserved) < 2:
        await asyncio.sleep(0.02)
    assert len(await asyncio.to_thread(results_left, unserved)) == 1
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await asyncio.to_thread(results_left, unserved) == []


def test_ctrl_c_cancels_the_requests(unserved: QueueSettings) -> None:
    def interrupt() -> None:
        while depth(unserved) < MANY.num_rows:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        map_table(MANY, "{text}", settings=unserved)
    thread.join()
    assert depth(unserved) == 0
    assert results_left(unserved) == []


def test_progress_is_shown_only_if_it_is_asked_for(
    settings: QueueSettings, capfd: pytest.CaptureFixture[str]
) -> None:
    table = pa.table({"text": ["a"]})
    map_table(table, "{text}", settings=settings)
    assert capfd.readouterr() == ("", "")
    map_table(table, "{text}", settings=settings, progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "1/1 finished (0 failed)" in captured.err

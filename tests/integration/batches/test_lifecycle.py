"""A batch from its creation to its files, with a real server and a worker that answers at once."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from batches import (
    CHAT,
    TENANT,
    Steps,
    all_rows,
    chat,
    create,
    files_in,
    open_batches,
    rows_of,
    run,
    upload,
)
from command_line import SettlingWorker
from queues import a_request, contents

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_spec import BatchSpec
from gristmill.producer.batches.lifecycle import advance, line_validator
from gristmill.producer.batches.lifecycle.execution import Execution
from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.batches.lifecycle.validation import Validation
from gristmill.producer.batches.rows import Line, LineReader
from gristmill.producer.batches.upload import Upload
from gristmill.shared.body_schemas import published_facts
from gristmill.shared.errors import InvalidRequest, LimitReached, NotFound
from gristmill.shared.queue import Queue


@pytest.fixture
def batches(queue: Queue, tmp_path: Path) -> Batches:
    return open_batches(queue, tmp_path / "storage")


@pytest.fixture
async def worker(queue: Queue) -> AsyncIterator[SettlingWorker]:
    async with SettlingWorker(queue).running() as running:
        yield running


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["custom_id"] for row in rows]


async def keys_of(queue: Queue, pattern: str) -> list[bytes]:
    return [key async for key in queue.redis.scan_iter(match=f"{queue.keys.prefix}{pattern}")]


@pytest.mark.usefixtures("worker")
async def test_every_line_has_one_row_and_the_counts_are_true(
    batches: Batches, queue: Queue, tmp_path: Path
) -> None:
    batch = await create(batches, [chat(f"c{i}") for i in range(300)], metadata={"team": "a"})
    assert batch.status == "validating"
    ended = await run(batches, batch)
    assert (ended.status, ended.error_file_id) == ("completed", None)
    assert ended.request_counts.model_dump() == {
        "total": 300, "completed": 300, "failed": 0, "cancelled": 0, "expired": 0,
    }  # fmt: skip
    assert (ended.model, ended.metadata) == ("stub", {"team": "a"})
    rows = await rows_of(batches, ended.output_file_id)
    assert sorted(ids(rows)) == sorted(f"c{i}" for i in range(300))
    assert all(row["response"]["status_code"] == 200 and row["error"] is None for row in rows)
    moments = [ended.created_at, ended.in_progress_at, ended.finalizing_at, ended.completed_at]
    assert moments == sorted(moments, key=lambda moment: moment or 0)
    file = await batches.files.get(TENANT, ended.output_file_id or "")
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert file.bytes == sum(len(chunk) for chunk in batches.files.content(file))
    assert not await keys_of(queue, "result:*"), "results are forgotten once they have their row"
    assert not await keys_of(queue, "batch_parts:*")
    assert [path.split("/")[0] for path in files_in(tmp_path / "storage")] == ["files", "results"]


@pytest.mark.usefixtures("worker")
async def test_a_line_never_takes_the_result_of_another_request(
    batches: Batches, queue: Queue
) -> None:
    """Regression: a request that had a line's id before the batch gave the line its result."""
    batch = await create(batches, [chat(f"c{i}") for i in range(3)])
    await queue.submit([a_request(f"{batch.id}-2")])
    ended = await run(batches, batch)
    assert ids(await rows_of(batches, ended.output_file_id)) == ["c0", "c2"]
    (row,) = await rows_of(batches, ended.error_file_id)
    assert (row["custom_id"], row["response"]["body"]["error"]["code"]) == ("c1", "id_conflict")


@pytest.mark.usefixtures("worker")
async def test_lines_are_parsed_beside_the_renewal_of_the_lease(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large lines take seconds to parse."""
    threads, read = set(), LineReader.read

    def noted(self: LineReader, line: Line) -> Any:
        threads.add(threading.current_thread())
        return read(self, line)

    monkeypatch.setattr(LineReader, "read", noted)
    await run(batches, await create(batches, [chat("c")]))
    assert threads
    assert threading.current_thread() not in threads


@pytest.mark.usefixtures("worker")
async def test_only_a_window_is_in_redis(queue: Queue, tmp_path: Path) -> None:
    batches = open_batches(queue, tmp_path, batch_window_requests=50)
    batch = await create(batches, [chat(f"c{i}") for i in range(500)])
    deepest = 0
    while (await batches.store.records.state(batch.id)).record.status != "completed":
        await advance(batches.store, batch.id, Steps(1))
        held = await keys_of(queue, "request:*") + await keys_of(queue, "result:*")
        # Count ids, since the worker turns requests into results between the two scans.
        deepest = max(deepest, len({key.rpartition(b":")[2] for key in held}))
    assert 0 < deepest <= 50


@pytest.mark.usefixtures("worker")
async def test_output_in_the_order_of_the_input(batches: Batches) -> None:
    batch = await create(batches, [chat(f"c{i}") for i in range(200)], order="input")
    ended = await run(batches, batch)
    assert ids(await rows_of(batches, ended.output_file_id)) == [f"c{i}" for i in range(200)]


def as_bytes(line: Any) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line).encode()  # orjson cannot nest deep


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


BAD_LINES: list[tuple[Any, str]] = [
    (b"[1,2]", "invalid_json_line"),
    (b"null", "invalid_json_line"),
    (b'"x"', "invalid_json_line"),
    (b"{broken", "invalid_json_line"),
    (b'{"custom_id": "\xff"}', "invalid_json_line"),
    (b'{"a": "\x00"}', "invalid_json_line"),
    (b"", "invalid_json_line"),
    (chat("c1", "/v1/embeddings"), "url_mismatch"),
    (chat("c0"), "duplicate_custom_id"),
    ({"custom_id": "x", "body": 5}, "invalid_request"),
    (chat("x") | {"metadata": {"deep": nested(300)}}, "invalid_request"),
    (chat("x" * 513), "invalid_request"),
    (chat("x", image_url="http://127.0.0.1/secret"), "invalid_media_url"),
    (chat("other", tenant="x") | {"tenant": "somebody"}, "invalid_request"),
]


@pytest.mark.parametrize(("line", "code"), BAD_LINES)
async def test_strict_a_bad_line_fails_the_file_and_is_named(
    batches: Batches, queue: Queue, line: Any, code: str
) -> None:
    lines: list[Any] = [chat(f"c{i}") for i in range(20)]
    lines[6] = as_bytes(line)
    ended = await run(batches, await create(batches, lines))
    assert ended.status == "failed"
    assert ended.failed_at
    assert ended.errors
    assert [(error.code, error.line) for error in ended.errors.data] == [(code, 7)]
    assert "line 7: " in ended.errors.data[0].message
    assert (await queue.stats()).counters.get("submitted", 0) == 0


@pytest.mark.parametrize(("line", "code"), BAD_LINES)
@pytest.mark.usefixtures("worker")
async def test_lenient_a_bad_line_gets_its_row_and_the_rest_runs(
    batches: Batches, line: Any, code: str
) -> None:
    lines: list[Any] = [chat(f"c{i}") for i in range(20)]
    lines[6] = as_bytes(line)
    ended = await run(batches, await create(batches, lines, mode="lenient"))
    assert (ended.status, ended.request_counts.completed, ended.request_counts.failed) == (
        "completed",
        19,
        1,
    )
    assert len(await rows_of(batches, ended.output_file_id)) == 19
    (row,) = await rows_of(batches, ended.error_file_id)
    assert row["id"] == f"batch_req_{ended.id}-7"
    assert (row["error"], row["response"]["status_code"]) == (None, 400)
    assert row["response"]["body"]["error"]["code"] == code


async def test_a_duplicate_names_both_lines(batches: Batches) -> None:
    ended = await run(batches, await create(batches, [chat("a"), chat("b"), chat("a")]))
    assert ended.errors
    (error,) = ended.errors.data
    assert (error.code, error.line) == ("duplicate_custom_id", 3)
    assert "line 3" in error.message
    assert "line 1" in error.message


async def test_strict_wants_one_model_and_lenient_does_not(batches: Batches) -> None:
    lines = [chat("a"), chat("b", model="other")]
    ended = await run(batches, await create(batches, lines))
    assert ended.errors
    assert [(error.code, error.line) for error in ended.errors.data] == [("model_mismatch", 2)]
    lenient = await create(batches, lines, mode="lenient")
    begun = await run(batches, lenient, until=lambda record: record.status != "validating")
    assert (begun.status, begun.request_counts.total) == ("in_progress", 2)


async def test_a_model_that_nobody_serves_is_a_bad_line(batches: Batches, queue: Queue) -> None:
    await queue.register("worker", {"models": "stub", "endpoints": CHAT})
    lines = [chat("a"), chat("b", model="wrong")]
    ended = await run(batches, await create(batches, lines))
    assert ended.errors
    (error,) = ended.errors.data
    assert (error.code, error.line) == ("model_not_found", 2)
    assert "serves model 'wrong'; they serve stub" in error.message
    lenient = await create(batches, lines, mode="lenient")
    begun = await run(batches, lenient, until=lambda record: record.status != "validating")
    assert (begun.status, begun.request_counts.failed) == ("in_progress", 1)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("mode", ["strict", "lenient"])
async def test_a_validation_in_pieces_finds_what_one_pass_finds(
    batches: Batches, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Each piece has one line, and begins with what the commits of the earlier ones say."""
    lines = [chat(f"c{i}") for i in range(12)] + [b"broken", chat("c3"), chat("x", model="other")]
    options: dict[str, Any] = {"mode": mode, "order": "input"}
    whole = await run(batches, await create(batches, lines, **options))
    monkeypatch.setattr(line_validator, "STEP_S", 0)
    batch = await create(batches, [*lines, b"", b""], **options)
    for number in range(len(lines)):
        assert (await batches.batch(TENANT, batch.id)).status == "validating"
        await advance(batches.store, batch.id, Steps(0))
        state = await batches.store.records.state(batch.id)
        assert state.checkpoint.validated.line == number + 1
    ended = await run(batches, batch)
    assert ended.status == whole.status
    assert (ended.errors, ended.request_counts) == (whole.errors, whole.request_counts)
    rows, expected = await all_rows(batches, ended), await all_rows(batches, whole)
    assert [row["custom_id"] for row in rows] == [row["custom_id"] for row in expected]


async def test_a_cancel_between_two_pieces_of_a_validation_leaves_nothing(
    batches: Batches, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(line_validator, "STEP_S", 0)
    batch = await create(batches, [chat("a"), b"broken", chat("b")], mode="lenient")
    for _ in range(2):
        await advance(batches.store, batch.id, Steps(0))
    assert any(path.startswith("batches/") for path in files_in(tmp_path / "storage"))
    await batches.cancel(TENANT, batch.id)
    assert (await run(batches, batch)).status == "cancelled"
    assert [path.split("/")[0] for path in files_in(tmp_path / "storage")] == ["files"]


def chat_schema(**fields: Any) -> dict[str, str]:
    """Return the facts of a worker whose chat bodies have these fields."""
    content = {"application/json": {"schema": {"type": "object", "properties": fields}}}
    paths = {CHAT: {"post": {"requestBody": {"content": content}}}}
    return published_facts({"openapi": "3.1.0", "paths": paths}, [CHAT])


async def serve(queue: Queue, worker: str, **schemas: str) -> None:
    await queue.register(worker, {"models": "stub", "endpoints": CHAT, **schemas})


NUMBER, TEXT = {"temperature": {"type": "number"}}, {"temperature": {"type": "string"}}


async def test_strict_a_body_that_no_worker_would_take_fails_the_file(
    batches: Batches, queue: Queue
) -> None:
    await serve(queue, "one", **chat_schema(**NUMBER))
    await serve(queue, "two", **chat_schema(**NUMBER))
    lines = [chat("a"), chat("b", temperature="warm"), chat("c", temperature="0.5")]
    ended = await run(batches, await create(batches, lines))
    assert ended.errors
    (error,) = ended.errors.data
    assert (error.code, error.line) == ("invalid_body", 2)
    assert 'temperature must be number, not "warm"' in error.message


@pytest.mark.parametrize("others", [{}, chat_schema(**TEXT)], ids=["no schema", "another schema"])
async def test_a_body_that_some_worker_might_take_is_no_error(
    batches: Batches, queue: Queue, others: dict[str, str]
) -> None:
    await serve(queue, "one", **chat_schema(**NUMBER))
    await serve(queue, "two", **others)
    batch = await create(batches, [chat("a", temperature="warm")])
    begun = await run(batches, batch, until=lambda record: record.status != "validating")
    assert begun.status == "in_progress"


async def test_lenient_or_unasked_a_body_is_left_to_the_engine(
    queue: Queue, tmp_path: Path
) -> None:
    await serve(queue, "one", **chat_schema(**NUMBER))
    for mode, check_bodies in (("lenient", True), ("strict", False)):
        batches = open_batches(queue, tmp_path, check_bodies=check_bodies)
        batch = await create(batches, [chat("a", temperature="warm")], mode=mode)
        begun = await run(batches, batch, until=lambda record: record.status != "validating")
        assert (begun.status, begun.request_counts.failed) == ("in_progress", 0)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf"])
async def test_an_empty_file_fails(batches: Batches, data: bytes) -> None:
    file = await upload(batches, data)
    ended = await run(
        batches, await batches.create(TENANT, BatchSpec(input_file_id=file.id, endpoint=CHAT))
    )
    assert ended.errors
    assert [error.code for error in ended.errors.data] == ["empty_file"]


async def test_a_file_with_too_many_lines_fails(queue: Queue, tmp_path: Path) -> None:
    batches = open_batches(queue, tmp_path, max_batch_requests=10)
    ended = await run(batches, await create(batches, [chat(f"c{i}") for i in range(11)]))
    assert ended.errors
    assert (ended.errors.data[0].code, ended.errors.data[0].line) == ("too_many_requests", 11)
    assert "ask the operator to raise GRISTMILL_MAX_BATCH_REQUESTS" in ended.errors.data[0].message


async def test_errors_beyond_a_hundred_are_counted(batches: Batches) -> None:
    ended = await run(batches, await create(batches, [b"x"] * 150))
    assert ended.errors
    assert len(ended.errors.data) == 101
    assert ended.errors.data[-1].message.startswith("and 50 more lines")


async def test_cancel_ends_without_any_worker_and_every_line_has_a_row(
    batches: Batches, queue: Queue
) -> None:
    batch = await create(batches, [chat(f"c{i}") for i in range(2000)])
    await run(batches, batch, until=lambda record: record.status == "in_progress")
    worker = SettlingWorker(queue)
    await queue.register("worker", {"model": "m"})
    await advance(batches.store, batch.id, Steps(2))
    settled = await worker.settle(100)
    cancelling = await batches.cancel(TENANT, batch.id)
    assert (cancelling.status, cancelling.cancelled_at) == ("cancelling", None)
    ended = await run(batches, batch)
    assert ended.status == "cancelled"
    assert ended.cancelling_at
    assert ended.cancelled_at
    counts = ended.request_counts
    assert (counts.total, counts.completed, counts.cancelled) == (2000, len(settled), 2000 - len(settled))  # fmt: skip
    rows = await all_rows(batches, ended)
    assert sorted(ids(rows)) == sorted(f"c{i}" for i in range(2000))
    errors = await rows_of(batches, ended.error_file_id)
    assert {row["error"]["code"] for row in errors} == {"batch_cancelled"}
    assert {row["response"] for row in errors} == {None}
    stats = (await queue.stats()).counters
    assert (stats.get("queued", 0), stats.get("in_flight", 0)) == (0, 0)
    assert not await keys_of(queue, "result:*")


async def test_cancel_before_the_validation(batches: Batches) -> None:
    batch = await create(batches, [chat("a")])
    await batches.cancel(TENANT, batch.id)
    ended = await run(batches, batch)
    assert (ended.status, ended.request_counts.total) == ("cancelled", 0)


@pytest.mark.parametrize("mode", ["strict", "lenient"])
async def test_a_file_of_another_format_fails_with_one_error_that_names_it(
    batches: Batches, mode: str
) -> None:
    file = await upload(batches, b"PAR1\x15\x04\n\x00\n")
    spec = BatchSpec(input_file_id=file.id, endpoint=CHAT, mode=mode)  # type: ignore[arg-type]
    ended = await run(batches, await batches.create(TENANT, spec))
    assert ended.status == "failed"
    assert ended.errors
    (error,) = ended.errors.data
    assert (error.code, error.line) == ("invalid_json_line", 1)
    assert error.message.startswith("the file is a Parquet file; convert it")


@pytest.mark.parametrize("status", ["validating", "in_progress"])
async def test_a_cancel_that_a_slice_meets_while_it_runs_leaves_its_time(
    batches: Batches, queue: Queue, status: str
) -> None:
    batch = await create(batches, [chat("a"), chat("b")])
    if status == "in_progress":
        await run(batches, batch, until=lambda record: record.status == "in_progress")
    leased = await LeasedBatch.take(batches.store, batch.id)
    assert leased
    await batches.cancel(TENANT, batch.id)
    path = (await batches.files.get(TENANT, batch.input_file_id)).path
    if status == "in_progress":
        await Execution(batches.store, leased, path).run(lambda _: True)
    else:
        await Validation(batches.store, leased).run(path, lambda _: True)
    await leased.release()
    ended = await run(batches, batch)
    assert ended.status == "cancelled"
    assert ended.cancelling_at


async def test_an_ended_batch_cannot_be_cancelled(batches: Batches) -> None:
    batch = await create(batches, [b"x"])
    await run(batches, batch)
    with pytest.raises(
        InvalidRequest, match="is failed; only one that is validating or in progress"
    ):
        await batches.cancel(TENANT, batch.id)


async def test_a_wrong_url_is_named_as_that_whatever_is_served(batches: Batches, queue: Queue) -> None:  # fmt: skip
    await queue.register("worker", {"models": "stub", "endpoints": "/v1/chat/completions"})
    batch = await create(batches, [chat("a"), chat("b", "/v1/embeddings")])
    failed = await run(batches, batch)
    assert failed.errors
    assert [(error.line, error.code) for error in failed.errors.data] == [(2, "url_mismatch")]


async def test_a_slice_that_only_waits_ends_when_it_is_told_to(batches: Batches) -> None:
    """Regression: a batch that waited for answers kept a steward from other batches for 10 s."""
    batch = await create(batches, [chat("a")])
    idle: list[float] = []

    def may_go_on(idle_s: float) -> bool:
        idle.append(idle_s)
        return idle_s < 0.2

    await advance(batches.store, batch.id, may_go_on)  # validates the file
    await advance(batches.store, batch.id, may_go_on)  # submits the line, which no worker answers
    assert (await batches.batch(TENANT, batch.id)).status == "in_progress"
    assert idle[0] < 0.2 <= idle[-1]


@pytest.mark.usefixtures("worker")
async def test_an_answer_may_be_any_json(batches: Batches) -> None:
    """Regression: an answer that is no object, or odd usage, blocked its batch and the cancel."""
    answers = [
        *(
            "[1]",
            '"text"',
            "5",
            "null",
            "{}",
            '{"usage": [1]}',
            '{"usage": {"prompt_tokens": 1.5}}',
        ),
        *('{"usage": {"prompt_tokens": "x", "completion_tokens": 100000000000000000000}}',),
        '{"usage": {"prompt_tokens": 2, "completion_tokens": 3}}',
    ]
    lines = [chat(f"c{i}", prompt=f"answer {answer}") for i, answer in enumerate(answers)]
    ended = await run(batches, await create(batches, lines))
    assert (ended.status, ended.request_counts.completed) == ("completed", len(answers))
    assert (ended.usage.input_tokens, ended.usage.output_tokens) == (2, 3)
    rows = {row["custom_id"]: row["response"]["body"] for row in await all_rows(batches, ended)}
    assert rows["c0"] == [1]


@pytest.mark.parametrize("number", [3, 1500])  # the queue expires 3 before the steward looks
async def test_the_completion_window_expires_what_is_unfinished(
    batches: Batches, queue: Queue, number: int
) -> None:
    lines = [chat(f"c{i}") for i in range(number)]
    batch = await create(batches, lines, completion_window="2s")
    ended = await run(batches, batch)
    assert ended.status == "expired"
    assert ended.expired_at
    assert ended.request_counts.expired == number
    errors = await rows_of(batches, ended.error_file_id)
    assert sorted(ids(errors)) == sorted(f"c{i}" for i in range(number))
    assert {row["error"]["code"] for row in errors} == {"batch_expired"}
    assert (await queue.stats()).counters.get("queued", 0) == 0


@pytest.mark.usefixtures("worker")
async def test_only_what_failed_is_run_again(batches: Batches) -> None:
    lines: list[Any] = [chat(f"c{i}") for i in range(10)]
    lines[3] = b"broken"
    options: dict[str, Any] = {"mode": "lenient", "metadata": {"a": "b"}, "priority": "high"}
    first = await run(batches, await create(batches, lines, **options))
    again = await batches.retry_failed(TENANT, first.id, is_all=True)
    assert again.retry_of == first.id
    assert {name: getattr(again, name) for name in options} == options
    lowered = await batches.retry_failed(TENANT, first.id, max_priority="normal", is_all=True)
    assert (lowered.priority, lowered.max_priority) == ("normal", "normal")
    source = await batches.files.get(TENANT, again.input_file_id)
    assert b"".join(batches.files.content(source)) == b"broken\n"
    ended = await run(batches, again)
    assert (ended.request_counts.total, ended.request_counts.failed) == (1, 1)


async def test_lines_that_can_never_succeed_are_not_run_again(batches: Batches, queue: Queue) -> None:  # fmt: skip
    lines: list[Any] = [chat(f"c{i}") for i in range(2)]
    lines += [b"broken", chat("c0"), chat("bad", stream=True)]
    batch = await create(batches, lines, mode="lenient")
    await run(batches, batch, until=lambda record: record.status == "in_progress")
    await batches.cancel(TENANT, batch.id)
    ended = await run(batches, batch)
    left_out: list[int] = []
    again = await batches.retry_failed(TENANT, ended.id, on_left_out=left_out.append)
    source = await batches.files.get(TENANT, again.input_file_id)
    names = [json.loads(line)["custom_id"] for line in b"".join(batches.files.content(source)).splitlines()]  # fmt: skip
    assert (names, left_out) == (["c0", "c1", "c0"], [2])


@pytest.mark.usefixtures("worker")
async def test_a_batch_of_hopeless_lines_has_nothing_to_retry(batches: Batches) -> None:
    batch = await create(batches, [chat("a"), b"broken", b"[]"], mode="lenient")
    ended = await run(batches, batch)
    with pytest.raises(InvalidRequest, match="its 2 failed lines were refused"):
        await batches.retry_failed(TENANT, ended.id)


@pytest.mark.usefixtures("worker")
async def test_a_batch_without_failures_has_nothing_to_retry(batches: Batches) -> None:
    ended = await run(batches, await create(batches, [chat("a")]))
    with pytest.raises(InvalidRequest, match="nothing in it failed"):
        await batches.retry_failed(TENANT, ended.id)


async def test_what_is_another_tenants_is_not_there(batches: Batches) -> None:
    batch = await create(batches, [chat("a")])
    for call in (
        batches.batch("other", batch.id), batches.cancel("other", batch.id), batches.retry_failed("other", batch.id),
        batches.results("other", batch.id), batches.files.get("other", batch.input_file_id),
        batches.files.delete("other", batch.input_file_id),
        batches.create("other", BatchSpec(input_file_id=batch.input_file_id, endpoint=CHAT)),
    ):  # fmt: skip
        with pytest.raises(NotFound):
            await call
    assert (await batches.batches("other")).data == ()
    assert (await batches.files.page("other")).data == ()


async def test_lists_come_in_pages(batches: Batches) -> None:
    made = [await create(batches, [chat("a")]) for _ in range(5)]
    newest_first = [batch.id for batch in reversed(made)]
    first = await batches.batches(TENANT, limit=2)
    assert ([batch.id for batch in first.data], first.has_more) == (newest_first[:2], True)
    rest = await batches.batches(TENANT, after=first.last_id, limit=3)
    assert ([batch.id for batch in rest.data], rest.has_more) == (newest_first[2:], False)
    files = await batches.files.page(TENANT, limit=4, order="asc")
    assert ([file.id for file in files.data], files.has_more) == ([b.input_file_id for b in made[:4]], True)  # fmt: skip
    assert (await batches.files.page(TENANT, purpose="batch_output")).data == ()


async def test_a_tenant_has_a_limit_of_unfinished_batches(batches: Batches) -> None:
    batch = await create(batches, [b"x"], max_open=1)
    with pytest.raises(LimitReached, match="1 batches that have not ended"):
        await create(batches, [b"x"], max_open=1)
    await run(batches, batch)
    await create(batches, [b"x"], max_open=1)


async def test_a_file_in_use_is_not_deleted(batches: Batches) -> None:
    batch = await create(batches, [b"x"])
    with pytest.raises(InvalidRequest, match=f"is the input of batch {batch.id}"):
        await batches.files.delete(TENANT, batch.input_file_id)
    await run(batches, batch)
    await batches.files.delete(TENANT, batch.input_file_id)
    with pytest.raises(NotFound):
        await batches.files.get(TENANT, batch.input_file_id)


@pytest.mark.parametrize("window", ["", "24", "h", "1w", "0h", "-1h", "400d", "1.5h", "24h "])
async def test_a_window_that_is_no_duration_is_refused(batches: Batches, window: str) -> None:
    with pytest.raises(InvalidRequest, match="completion_window"):
        await create(batches, [chat("a")], completion_window=window)


async def test_a_file_over_the_limit_is_refused_and_leaves_nothing(queue: Queue, tmp_path: Path) -> None:  # fmt: skip
    batches = open_batches(queue, tmp_path, max_file_bytes=1024)
    with pytest.raises(InvalidRequest, match="more than 1,024 bytes"):
        async with Upload(batches.files, TENANT) as file:
            file.write(b"x" * 1024)
            file.write(b"x")
    assert files_in(tmp_path) == []
    assert await contents(queue) == {}


@pytest.fixture
def small_queue(queue: Queue) -> Queue:
    return Queue(queue.redis, queue.keys.queue, replace(queue.limits, max_depth=10))


async def test_a_queue_that_is_full_takes_the_rest_when_it_drains(
    small_queue: Queue, tmp_path: Path
) -> None:
    batches = open_batches(small_queue, tmp_path)
    batch = await create(batches, [chat(f"c{i}") for i in range(300)])
    await run(batches, batch, until=lambda record: record.status == "in_progress")
    await advance(batches.store, batch.id, Steps(3))
    assert (await small_queue.stats()).counters["queued"] == 10
    async with SettlingWorker(small_queue).running():
        ended = await run(batches, batch)
    assert (ended.status, ended.request_counts.completed) == ("completed", 300)


async def test_a_batch_that_waits_for_a_full_queue_can_be_cancelled(
    small_queue: Queue, tmp_path: Path
) -> None:
    batches = open_batches(small_queue, tmp_path)
    batch = await create(batches, [chat(f"c{i}") for i in range(300)])
    await run(batches, batch, until=lambda record: record.status == "in_progress")
    feeding = asyncio.create_task(advance(batches.store, batch.id, Steps(10_000)))
    while (await small_queue.stats()).counters.get("queued", 0) < 10:
        await asyncio.sleep(0)
    await batches.cancel(
        TENANT, batch.id
    )  # in the same slice, which still holds the requests that the full queue refused
    await feeding
    ended = await run(batches, batch)
    assert (ended.status, ended.request_counts.cancelled) == ("cancelled", 300)
    assert len(await rows_of(batches, ended.error_file_id)) == 300


@pytest.mark.usefixtures("worker")
async def test_results_may_be_deleted_as_soon_as_they_are_there(
    batches: Batches, tmp_path: Path
) -> None:
    batch = await create(batches, [chat("a")])
    ended = await run(batches, batch, until=lambda record: record.status == "completed")
    await batches.files.delete(TENANT, ended.output_file_id or "")
    await run(batches, batch)
    assert [path.split("/")[0] for path in files_in(tmp_path / "storage")] == ["files"]


@pytest.mark.usefixtures("worker")
async def test_a_retry_names_lines_without_an_id_by_their_number(batches: Batches) -> None:
    lines: list[Any] = [chat("a"), {"body": 5}, {"prompt": "x", "messages": 1}, {"metadata": 5, "body": {}}]  # fmt: skip
    first = await run(batches, await create(batches, lines, mode="lenient"))
    assert ids(await rows_of(batches, first.error_file_id)) == [None, None]
    again = await run(batches, await batches.retry_failed(TENANT, first.id, is_all=True))
    assert sorted(ids(await rows_of(batches, again.error_file_id))) == ["2", "4"]


IGNORED: list[Any] = [
    chat("a"),
    {"custom_id": "b", "url": CHAT, "body": {"messages": [], "max_token": 3, "model": "stub"}},
    chat("c"),
]


@pytest.mark.usefixtures("worker")
async def test_fields_that_the_engine_ignores_are_warnings_on_the_batch(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_validator, "STEP_S", 0)  # a line in each slice
    batch = await create(batches, IGNORED)
    while (now := await batches.batch(TENANT, batch.id)).status == "validating":
        await advance(batches.store, batch.id, Steps(0))
    assert now.warnings
    (warning,) = now.warnings.data
    assert (warning.code, warning.line) == ("unknown_field", 2)
    assert "line 2: " in warning.message
    assert "'max_token' (did you mean 'max_tokens'?)" in warning.message
    ended = await run(batches, batch)
    assert (ended.status, ended.request_counts.completed, ended.warnings) == ("completed", 3, now.warnings)  # fmt: skip


@pytest.mark.usefixtures("worker")
async def test_a_batch_may_refuse_fields_that_the_engine_ignores(batches: Batches) -> None:
    strict = await run(batches, await create(batches, IGNORED, unknown_fields="refuse"))
    assert (strict.status, strict.warnings) == ("failed", None)
    assert strict.errors
    assert [(error.code, error.line) for error in strict.errors.data] == [("unknown_field", 2)]
    lenient = await create(batches, IGNORED, unknown_fields="refuse", mode="lenient")
    ended = await run(batches, lenient)
    assert ids(await rows_of(batches, ended.error_file_id)) == ["b"]
    assert (ended.request_counts.completed, ended.warnings) == (2, None)


async def test_a_removed_field_is_an_error_in_any_batch(batches: Batches) -> None:
    line = {"custom_id": "a", "url": CHAT, "body": {"messages": [], "guided_json": {}}}
    ended = await run(batches, await create(batches, [line]))
    assert ended.errors
    assert ended.errors.data[0].code == "unknown_field"
    assert 'use "structured_outputs": {"json": ...}' in ended.errors.data[0].message


async def test_a_file_of_blank_lines_is_no_trap(batches: Batches) -> None:
    file = await upload(batches, b"\n" * 100_000)
    ended = await run(
        batches, await batches.create(TENANT, BatchSpec(input_file_id=file.id, endpoint=CHAT))
    )
    assert ended.errors
    assert (ended.errors.data[0].code, ended.errors.data[0].line) == ("invalid_json_line", 1)

from pathlib import Path
from typing import Any

import orjson
import pytest

from gristmill.producer.batches.batch_state import BatchState
from gristmill.producer.batches.lifecycle.line_tracker import LineTracker
from gristmill.producer.batches.lifecycle.row_buffer import RowBuffer
from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.batches.rows import BadLine, Line
from gristmill.producer.batches.storage import Storage
from gristmill.shared.results import Result

BATCH = "batch_1"
RECORD = BatchRecord(
    id=BATCH, tenant="t", endpoint="/v1/completions", input_file_id="file-1", completion_window="24h",
    created_at=1, expires_at=2, status="in_progress",
)  # fmt: skip
STATE = BatchState.parse({b"record": RECORD.model_dump_json().encode()})


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


@pytest.fixture
def tracker(storage: Storage) -> LineTracker:
    return LineTracker(STATE, RowBuffer(storage, BATCH))


def line(number: int) -> Line:
    return Line(number, b'{"custom_id": "c%d"}' % number, 10 * number, 10 * number + 10)


def result(number: int, **fields: Any) -> Result:
    base: dict[str, Any] = {
        "id": f"{BATCH}-{number}", "status": "succeeded", "endpoint": "/v1/completions", "attempt": 1,
        "enqueued_ms": 1, "finished_ms": 2, "status_code": 200, "error": None, "worker": "w",
        "body": {"usage": {"prompt_tokens": 2, "completion_tokens": 3}}, "metadata": {"custom_id": f"c{number}"},
    }  # fmt: skip
    return Result(**(base | fields))


def test_a_line_gets_one_row_however_often_its_result_comes(
    tracker: LineTracker, storage: Storage
) -> None:
    tracker.expect(line(1))
    tracker.expect(line(1))
    assert (tracker.outstanding_bytes, tracker.num_uncommitted) == (10, 1)
    assert tracker.finish(result(1))
    assert not tracker.finish(result(1))
    tracker.rows.flush()
    record, checkpoint, parts = tracker.take_changes(STATE)
    assert (record.request_counts.completed, record.usage.total_tokens) == (1, 5)
    assert (checkpoint.outstanding, checkpoint.has_parts, len(parts)) == ({}, True, 1)
    rows = b"".join(storage.chunks(parts[0].path)).splitlines()
    assert [orjson.loads(row)["custom_id"] for row in rows] == ["c1"]


def test_the_usage_has_cached_and_reasoning_tokens_of_both_apis(tracker: LineTracker) -> None:
    chat = {
        "prompt_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens": 5,
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    responses = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    silent = {"prompt_tokens": 9, "prompt_tokens_details": None, "completion_tokens": 5}
    for number, usage in enumerate((chat, responses, silent), 1):
        tracker.expect(line(number))
        tracker.finish(result(number, body={"usage": usage}))
    tracker.rows.flush()
    usage = tracker.take_changes(STATE)[0].usage
    assert usage.model_dump() == {
        "input_tokens": 27,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 15,
        "output_tokens_details": {"reasoning_tokens": 6},
        "total_tokens": 42,
    }


def test_the_next_commit_has_only_what_came_after_the_last_one(tracker: LineTracker) -> None:
    tracker.expect(line(1))
    tracker.finish_bad(BadLine(2, "why", "c2"))
    tracker.rows.flush()
    record, checkpoint, _ = tracker.take_changes(STATE)
    assert (record.request_counts.failed, dict(checkpoint.outstanding)) == (1, {1: (10, 10)})
    again, _, parts = tracker.take_changes(STATE)
    assert (again.request_counts.failed, parts) == (0, [])


def test_a_closing_batch_says_in_each_row_why(tracker: LineTracker, storage: Storage) -> None:
    tracker.is_read, tracker.closing = True, "cancelled"
    tracker.expect(line(1))
    cancelled = {"status": "cancelled", "status_code": None, "body": None}
    assert tracker.finish(result(1, **cancelled, error={"code": "cancelled", "message": "by hand"}))
    tracker.finish_unanswered(line(2), BadLine(2, "why", "c2"))
    tracker.rows.flush()
    record, _, (part,) = tracker.take_changes(STATE)
    assert (record.status, record.closing, record.request_counts.cancelled) == (
        "finalizing",
        "cancelled",
        2,
    )
    rows = [orjson.loads(row) for row in b"".join(storage.chunks(part.path)).splitlines()]
    assert [(row["custom_id"], row["error"]["code"]) for row in rows] == [
        ("c1", "batch_cancelled"),
        ("c2", "batch_cancelled"),
    ]

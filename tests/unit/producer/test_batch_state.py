from typing import Any

import pytest

from gristmill.producer.batches.batch_state import (
    BatchState,
    ByteRange,
    Checkpoint,
    ChildPlan,
    Validated,
)
from gristmill.producer.batches.objects import BatchRecord


def record(**fields: Any) -> BatchRecord:
    base: dict[str, Any] = {
        "id": "batch_1", "tenant": "t", "endpoint": "/v1/completions", "input_file_id": "file-1",
        "completion_window": "24h", "created_at": 1, "expires_at": 2,
    }  # fmt: skip
    return BatchRecord(**(base | fields))


def state(batch: BatchRecord, **fields: bytes) -> BatchState:
    info = {name.encode(): value for name, value in fields.items()}
    return BatchState.parse({b"record": batch.model_dump_json().encode()} | info)


def test_a_checkpoint_is_read_back_as_it_was_written() -> None:
    outstanding = {7: ByteRange(100, 20), 9: ByteRange(140, 5)}
    validated = Validated(3, 90, 1, "m", ({"code": "c", "message": "m"},), ("path",))
    written = Checkpoint(9, 145, outstanding=outstanding, skipped="a", has_parts=True, validated=validated, planned={"q": ChildPlan("p", 2, 3)}, child_lines=ChildPlan("p", 1, 4))  # fmt: skip
    assert Checkpoint.parse(written.dump()) == written
    assert Checkpoint.parse(b"{}") == Checkpoint()


@pytest.mark.parametrize(
    ("status", "fields", "phase"),
    [
        ("validating", {}, "validate"),
        ("in_progress", {}, "execute"),
        ("finalizing", {}, "finalize"),
        ("completed", {}, "announce"),
        ("completed", {"announced_at": b"5"}, None),
        ("failed", {"announced_at": b"5", "checkpoint": b'{"has_parts":true}'}, "finalize"),
    ],
)
def test_the_phase_follows_from_what_is_written(
    status: str, fields: dict[str, bytes], phase: str | None
) -> None:
    assert state(record(status=status), **fields).phase == phase


@pytest.mark.parametrize(
    ("fields", "phase"),
    [
        ({"status": "in_progress", "children": ("a", "b")}, "follow"),
        ({"status": "finalizing", "children": ("a", "b")}, "finalize"),
        ({"status": "completed", "children": ("a", "b")}, "announce"),
        ({"status": "in_progress", "home": "a"}, "execute"),
        ({"status": "finalizing", "home": "a"}, "finalize"),
        ({"status": "completed", "home": "a"}, None),
    ],
)
def test_only_a_parent_follows_and_is_announced(fields: dict[str, Any], phase: str | None) -> None:
    assert state(record(**fields)).phase == phase


def test_a_cancel_is_seen_until_the_batch_stops() -> None:
    running = state(record(status="in_progress"), cancelling_at=b"5")
    assert (running.is_cancelled, running.record.cancelling_at) == (True, 5)
    ended = state(record(status="completed"), cancelling_at=b"5")
    assert (ended.is_cancelled, ended.record.cancelling_at) == (True, None)

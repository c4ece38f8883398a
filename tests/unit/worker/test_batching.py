"""When a claim is made and when a batch starts: a table a policy, no clock."""

import pytest

from gristmill.shared.records import Claimed, Record
from gristmill.worker.batching import BatchPolicy, claim_size, close_reason, groups, widened

CONTINUOUS = BatchPolicy("continuous", size=64, timeout_s=0, max_in_flight=100)
LINGERING = BatchPolicy("continuous", size=64, timeout_s=0.5, max_in_flight=100)
DYNAMIC = BatchPolicy("dynamic", size=8, timeout_s=0.5, max_in_flight=100)
STATIC = BatchPolicy("static", size=8, timeout_s=0, max_in_flight=100)
PATIENT = BatchPolicy("static", size=8, timeout_s=0.5, max_in_flight=100)
BUCKETED = BatchPolicy("bucketed", size=2, timeout_s=0, max_in_flight=100)


@pytest.mark.parametrize(
    ("policy", "running", "gathered", "expected"),
    [
        (CONTINUOUS, 0, 0, 64),
        (CONTINUOUS, 60, 0, 40),
        (CONTINUOUS, 100, 0, 0),
        (CONTINUOUS, 96, 0, 0),  # fewer than a twentieth free: wait for more
        (CONTINUOUS, 95, 0, 5),
        (CONTINUOUS, 0, 64, 0),
        (DYNAMIC, 0, 3, 5),
        (DYNAMIC, 1, 0, 0),  # the barrier
        (BUCKETED, 0, 0, 8),
        (BatchPolicy("static", 4096, 0, 100), 0, 0, 128),  # one call stays short
        (BatchPolicy("continuous", 64, 0, 3), 2, 0, 1),
    ],
)
def test_claim_takes_what_fits(
    policy: BatchPolicy, running: int, gathered: int, expected: int
) -> None:
    assert claim_size(policy, running, gathered) == expected


@pytest.mark.parametrize(
    ("policy", "running", "gathered", "got", "waited_s", "expected"),
    [
        (CONTINUOUS, 0, 0, 0, 9.0, None),  # nothing to start
        (CONTINUOUS, 0, 1, 1, 0.0, "timeout"),
        (CONTINUOUS, 50, 1, 1, 0.0, "joined"),
        (LINGERING, 0, 1, 1, 0.1, None),  # an idle engine waits to fill
        (LINGERING, 1, 1, 1, 0.1, "joined"),  # a running one never does
        (LINGERING, 0, 1, 0, 0.5, "drained"),
        (LINGERING, 0, 64, 64, 0.1, "full"),
        (DYNAMIC, 0, 8, 8, 0.0, "full"),
        (DYNAMIC, 0, 3, 0, 0.1, None),
        (DYNAMIC, 0, 3, 0, 0.5, "timeout"),
        (STATIC, 0, 3, 3, 9.0, None),  # more may be there
        (STATIC, 0, 3, 0, 0.0, "drained"),
        (PATIENT, 0, 3, 0, 0.4, None),
        (PATIENT, 0, 3, 0, 0.5, "drained"),
        (PATIENT, 0, 3, 3, 0.6, None),
        (STATIC, 0, 8, 1, 0.0, "full"),
    ],
)
def test_batch_closes_for_one_reason(
    policy: BatchPolicy,
    running: int,
    gathered: int,
    got: int,
    waited_s: float,
    expected: str | None,
) -> None:
    reason = close_reason(policy, running=running, gathered=gathered, got=got, waited_s=waited_s)
    assert reason == expected


def claimed(request_id: str, max_tokens: int) -> Claimed:
    header = f"1|0|0|default|normal|d||0|{max_tokens}|3||/v1/completions|||"
    return Claimed(request_id, 1, 1, 0, Record.parse(header.encode() + b"\n\n{}"))


def test_bucketed_batches_run_like_lengths_together() -> None:
    batch = [claimed("long", 900), claimed("short", 5), claimed("longer", 1000), claimed("mid", 50)]
    sorted_ids = [[item.id for item in group] for group in groups(BUCKETED, batch)]
    assert sorted_ids == [["short", "mid"], ["long", "longer"]]


def test_other_policies_keep_the_order_of_the_claims() -> None:
    batch = [claimed("b", 9), claimed("a", 1)]
    assert groups(CONTINUOUS, batch) == [batch]


def test_suspects_double_up_to_one_claim() -> None:
    assert [widened(1), widened(2), widened(100)] == [2, 4, 128]

"""Test the words with which the probes say why a worker is not ready."""

from gristmill.worker.liveness import Liveness


def test_worker_whose_results_redis_does_not_take_is_not_ready() -> None:
    liveness = Liveness(stall_timeout_s=60, redis_timeout_s=0, engine_timeout_s=60)
    liveness.note_waiting(None)
    liveness.write_began("bulk")
    assert liveness.unready_reason() == (
        "finished requests wait for 0 s until Redis takes their results"
    )
    liveness.write_ended("bulk")
    assert "finished" not in (liveness.unready_reason() or "")

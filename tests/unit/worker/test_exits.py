"""Test the texts for exit codes of the engine's processes."""

import logging
import signal

import pytest

from gristmill.worker.engine.vllm.compat import exit_codes_of_failed_start
from gristmill.worker.engine.vllm.core_process import CoreReports, _dead_worker, _failed_constraint
from gristmill.worker.engine.vllm.exits import describe_exit, describe_exits


@pytest.mark.parametrize(
    ("number", "cause", "remedy"),
    [
        (signal.SIGILL, "instruction that the processor or the sandbox", "Troubleshooting"),
        (signal.SIGSEGV, "memory that is not there", "another version of vLLM"),
        (signal.SIGBUS, "memory that the kernel could not provide", "check the model's folder"),
        (signal.SIGKILL, "a memory limit was reached", "raise the limit"),
        (signal.SIGABRT, "gave up", "the end of the engine's log"),
    ],
)
def test_signal_is_named_with_its_likely_cause_and_remedy(
    number: signal.Signals, cause: str, remedy: str
) -> None:
    told = describe_exit("EngineCore", -number)
    assert told.startswith(f"EngineCore was killed by {number.name}. ")
    assert cause in told
    assert remedy in told
    assert str(-number) not in told


def test_signal_without_a_known_cause_is_named_alone() -> None:
    assert describe_exit("EngineCore", -signal.SIGUSR1) == "EngineCore was killed by SIGUSR1."
    assert describe_exit("EngineCore", -(signal.SIGRTMIN + 1)).startswith(
        "EngineCore was killed by signal "
    )


def test_exit_code_points_to_the_log() -> None:
    told = describe_exits({"EngineCore_DP0": 1, "EngineCore_DP1": -9})
    first, second = told.split("; EngineCore_DP1 ")
    assert first == ("EngineCore_DP0 ended with exit code 1; the end of the engine's log says why")
    assert second.startswith("was killed by SIGKILL")
    assert describe_exits({}) == ""


def test_codes_of_a_failed_start_are_read_from_vllms_error() -> None:
    error = RuntimeError(
        "Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {'EngineCore_DP0': -4, 'EngineCore_DP1': 1}"
    )
    assert exit_codes_of_failed_start(error) == {"EngineCore_DP0": -4, "EngineCore_DP1": 1}
    assert exit_codes_of_failed_start(RuntimeError("no memory")) == {}


@pytest.mark.parametrize(
    ("exit_code", "told"),
    [
        (-4, "VllmWorker-1 was killed by SIGILL"),
        (None, "VllmWorker-1 died"),
        (1, "ended with exit"),
    ],
)
def test_death_of_a_worker_process_is_read_from_vllms_log(exit_code: int | None, told: str) -> None:
    text = "Worker proc %s died unexpectedly (exit code: %s), shutting down executor."
    record = logging.LogRecord(
        "vllm", logging.ERROR, "executor.py", 1, text, ("VllmWorker-1", exit_code), None
    )
    assert told in str(_dead_worker(record))


def test_failed_constraint_is_read_from_vllms_log() -> None:
    def record(text: str, *args: object, error: Exception | None = None) -> logging.LogRecord:
        raised = (type(error), error, None) if error else None
        return logging.LogRecord("vllm", logging.ERROR, "x.py", 1, text, args, raised)

    compiled = "Failed to compile grammar for request %s"
    assert _failed_constraint(record(compiled, "cmpl-1-0", error=RuntimeError("too large"))) == (
        "cmpl-1-0",
        "too large",
    )
    rejected = "Unexpected: grammar rejected tokens %s for request %s. Terminating request."
    assert _failed_constraint(record(rejected, [0], "cmpl-1-0")) == (
        "cmpl-1-0",
        "no token of the model continues the answer",
    )
    assert _failed_constraint(record("%s failed %s times", "a", 2)) is None


def test_failed_constraint_is_told_to_its_own_request_alone() -> None:
    reports = CoreReports()
    reports.writer.send(("0_cmpl-1-12-a1b2c3d4", "too large"))
    assert reports.failed_constraint(["cmpl-1-1", "cmpl-1-2"]) is None
    assert reports.failed_constraint([]) is None
    assert reports.failed_constraint(["cmpl-2-0", "cmpl-1-12"]) == "too large"
    reports.close()


def test_other_records_of_vllm_are_no_deaths() -> None:
    record = logging.LogRecord(
        "vllm", logging.ERROR, "x.py", 1, "%s failed %s times", ("a", 2), None
    )
    assert _dead_worker(record) is None

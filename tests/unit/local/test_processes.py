"""Processes that end with the process that started them."""

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from gristmill.local.processes import LoggedProcess, running_process
from gristmill.local.steps import step
from gristmill.shared.errors import GristmillError, SettingsError

PRINT_DEATH_SIGNAL = """
import ctypes
number = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG
print(number.value)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of the Linux kernel")
def test_a_process_dies_with_its_parent_and_its_fork_loads_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_name: str | None) -> NoReturn:
        raise AssertionError("the loader has locks, and another thread may hold them")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    command = [sys.executable, "-c", PRINT_DEATH_SIGNAL]
    with (
        step("waiting") as shown,
        running_process("it", command, tmp_path / "log", {}, 0) as process,
    ):
        assert process.wait(shown, 60) == "9"


REFUSED = (
    '{"level": "error", "event": "engine.died", "error": "an earlier one"}\n'
    '{"level": "error", "event": "settings.rejected", "error": "vLLM does not\\n  know --fast"}\n'
    '{"level": "warning", "event": "x"}\nsome words of vLLM\n'
)


@pytest.mark.parametrize(
    ("logged", "code", "kind", "message"),
    [
        (REFUSED, 2, SettingsError, "it ended with exit code 2: vLLM does not know --fast; its log: {log}"),
        (REFUSED, 1, GristmillError, "it ended with exit code 1: vLLM does not know --fast; its log: {log}"),
        ("no JSON\n", 2, SettingsError, "it ended with exit code 2; the end of its log, {log}:\n  no JSON"),
        ("7\n", 1, GristmillError, "it ended with exit code 1; the end of its log, {log}:\n  7"),
    ],
    ids=["settings", "engine", "words-alone", "no-event"],
)  # fmt: skip
def test_the_end_of_a_process_is_told_in_the_words_of_its_last_error(
    tmp_path: Path, logged: str, code: int, kind: type[GristmillError], message: str
) -> None:
    log = tmp_path / "log"
    log.write_text(logged)
    process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
    process.wait()
    with pytest.raises(GristmillError) as ended:
        LoggedProcess("it", process, log).check()
    assert type(ended.value) is kind
    assert str(ended.value) == message.format(log=log)

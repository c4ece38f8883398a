"""Processes that end with the process that started them."""

import ctypes
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from gristmill.local.processes import running_process
from gristmill.local.steps import step

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

"""Process 1 of a container inherits what dead workers leave, and takes its exit codes."""

import ctypes
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from gristmill.worker.parent.orphans import reap_orphans

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
def heir_of_orphans() -> Iterator[None]:
    """Make this process inherit orphans, as process 1 does."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux names the heir of orphans")
@pytest.mark.usefixtures("heir_of_orphans")
def test_only_the_exit_codes_of_orphans_are_taken() -> None:
    parent = subprocess.run(
        ["sh", "-c", "sleep 0.2 >/dev/null 2>&1 & echo $!"], capture_output=True, check=True
    )
    orphan = psutil.Process(int(parent.stdout))
    own = subprocess.Popen(["sh", "-c", "exit 7"])
    while {orphan.status(), psutil.Process(own.pid).status()} != {psutil.STATUS_ZOMBIE}:
        time.sleep(0.01)
    reap_orphans({own.pid})
    assert not psutil.pid_exists(orphan.pid)
    assert own.wait() == 7

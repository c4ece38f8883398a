"""Unpack the released version, and run the queue driver of a tree as a process.

The tree is what `git archive` gives of the release's commit, so a clone with its history has it. A clone without it
(`git clone --depth`) fetches that one commit.
"""

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pytest

from gristmill.local.processes import die_with_parent

RELEASE = "1cb3a9c031434eada9dd593ca9ccafbb1d021bc3"
"""Commit of version 0.1.0, as CHANGELOG.md names it."""

HERE = Path(__file__).resolve().parents[1]
PORTIONS = ("bench", "local", "producer", "shared", "worker", "tests")


def unpack_release(folder: Path) -> Path:
    """Write the released version's tree into a folder and return it; skip the test if git does not have it."""
    if _git("cat-file", "-e", f"{RELEASE}^{{commit}}").returncode:
        _git("fetch", "--quiet", "--depth=1", "origin", RELEASE)
    archive = _git("archive", "--format=tar", RELEASE, *PORTIONS)
    if archive.returncode:
        pytest.skip(
            f"git does not have {RELEASE}; `git fetch origin {RELEASE}` gets it: {archive.stderr.decode()}"
        )
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def _git(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", "-C", str(HERE), *arguments], capture_output=True, check=False)


def environment_of(tree: Path) -> dict[str, str]:
    """Return the variables with which Python imports a tree's packages and nothing of another tree."""
    return {"PYTHONPATH": os.pathsep.join(str(tree / portion) for portion in PORTIONS)}


class DriverProcess:
    """`tests/queue_driver.py` of a tree, as a process."""

    def __init__(self, process: "subprocess.Popen[bytes]", tree: Path) -> None:
        self._process, self.tree = process, tree

    def __call__(self, verb: str, *arguments: Any) -> Any:
        """Take one step and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(orjson.dumps([verb, *arguments]) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the driver of {self.tree} ended in {verb}")
        return orjson.loads(line)


@contextmanager
def running_driver(tree: Path, redis_url: str) -> Iterator[DriverProcess]:
    """Run a tree's queue driver for the length of a block."""
    process = subprocess.Popen(
        [sys.executable, str(tree / "tests" / "queue_driver.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | environment_of(tree) | {"REDIS_URL": redis_url},
        preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
    )
    with process:
        yield DriverProcess(process, tree)

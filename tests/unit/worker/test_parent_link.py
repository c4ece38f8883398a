"""The worker's end of the link to its parent: reports that never block, and turns to start an engine."""

import asyncio
import os
import subprocess
import sys
from tempfile import TemporaryFile

import orjson

from gristmill.worker.parent import ParentLink, Report

HOLD_TURN = """
import fcntl, os, sys
fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX)
print("mine", flush=True)
sys.stdin.read()
"""


def a_link(report_fd: int = -1, turn_fd: int = -1) -> ParentLink:
    return ParentLink("0", os.getppid(), report_fd, turn_fd)


def test_reports_are_lines_and_a_parent_that_reads_none_blocks_nobody() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in range(2000):
        a_link(report_fd=writer).report(Report(8080, "x" * 5000, number))
    os.close(writer)
    with os.fdopen(reader, "rb") as lines:
        reports = [Report(**orjson.loads(line)) for line in lines]
    assert 10 < len(reports) < 2000
    assert reports[0] == Report(8080, "x" * 500, 0)
    assert [report.num_settled for report in reports] == list(range(len(reports)))


async def test_turn_waits_for_the_other_process_and_its_death_ends_its_turn() -> None:
    with TemporaryFile() as file:
        descriptor = file.fileno()
        other = subprocess.Popen(
            [sys.executable, "-c", HOLD_TURN, str(descriptor)],
            pass_fds=[descriptor],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with other:
            assert other.stdout
            assert other.stdout.readline() == b"mine\n"
            begun = asyncio.Event()

            async def start() -> None:
                async with a_link(turn_fd=descriptor).start_turn():
                    begun.set()

            starting = asyncio.create_task(start())
            await asyncio.sleep(0)
            assert not begun.is_set()
            other.kill()
            await starting
        assert begun.is_set()

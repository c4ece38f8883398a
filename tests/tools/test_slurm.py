"""The jobs of docs/slurm on a true Slurm: worker, producer and server are killed or started again in the middle."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import orjson
import psutil
import pytest
from slurm_node import SlurmNode, slurm_node, until

from gristmill.local.redis_server import running_server
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue

TESTS = Path(__file__).parents[1]
START = TESTS.parent / "docs" / "slurm" / "start.sh"
NUM_LINES = 2_400
KILL_WAIT_S = 5

pytestmark = [pytest.mark.tools, pytest.mark.timeout(900)]

COMMAND = """\
#!/usr/bin/env bash
# The command `gristmill` of the jobs: a worker has the stub engine.
if [ "$1" = worker ]; then
  GRISTMILL_UNTIL_EMPTY=true exec {python} {tests}/stub_worker.py
fi
exec {python} -m gristmill.shared.cli "$@"
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SlurmNode]:
    command = tmp_path / "bin" / "gristmill"
    command.parent.mkdir()
    command.write_text(COMMAND.format(python=sys.executable, tests=TESTS))
    command.chmod(0o755)
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_node(folder, KILL_WAIT_S) as node:
        yield replace(
            node,
            environment=node.environment | {
                "PATH": f"{command.parent}:{node.environment['PATH']}",
                "SBATCH_TIMELIMIT": "10",
                "GRISTMILL_LEASE_S": "3",
                "GRISTMILL_FIRST_REQUEST_TIMEOUT_S": "30",
                "STUB_TOKEN_DELAY_S": "0.1",
                "MAX_IN_FLIGHT": "32",
            },
        )  # fmt: skip


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "input.jsonl"
    with path.open("wb") as file:
        for number in range(NUM_LINES):
            body = {"model": "stub", "prompt": f"word {number}", "max_tokens": 20}
            line = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/completions", "body": body}  # fmt: skip
            file.write(orjson.dumps(line) + b"\n")
    return path


def num_rows(output: Path) -> int:
    return output.read_bytes().count(b"\n") if output.exists() else 0


async def test_nothing_is_lost_or_doubled_when_jobs_are_killed_and_started_again(
    node: SlurmNode, lines: Path, tmp_path: Path
) -> None:
    run, output = tmp_path / "run", tmp_path / "output.jsonl"
    node.run(str(START), str(run), str(lines), str(output), "3", "--model", "stub")
    server, workers, producer, _ = (run / "jobs").read_text().split()

    until(lambda: num_rows(output) >= 200, "200 rows")
    kill_processes(node, f"{workers}_0")
    node.restart(f"{workers}_1")
    until(lambda: num_rows(output) >= 500, "500 rows")
    check_that_workers_wait_for_the_producer(node, workers, producer)
    old = (run / "address").read_text()
    node.restart(server)
    until(lambda: node.state(server) == "RUNNING", "the server")
    num_before = num_rows(output)
    until(lambda: num_rows(output) >= num_before + 200, "200 more rows from the same address")
    assert (run / "address").read_text() == old
    (run / "address.last").write_text("other-node:1\n")
    node.restart(server)
    until(lambda: (run / "address").read_text() != old, "the new address")
    for job in (f"{workers}_1", f"{workers}_2", producer):
        node.start_now(job)
    until(lambda: node.state(server) == "COMPLETED", "the end of the server", 300)

    for job in (f"{workers}_1", f"{workers}_2", producer):
        assert node.state(job) == "COMPLETED", job
    rows = [orjson.loads(line) for line in output.read_bytes().splitlines()]
    assert {row["custom_id"] for row in rows} == {f"row-{number}" for number in range(NUM_LINES)}
    assert len(rows) == NUM_LINES
    assert {row["response"]["status_code"] for row in rows} == {200}
    await check_queue(run)


def is_held(node: SlurmNode, job: str) -> bool:
    return node.field(job, "Priority") == "0"


def is_released(node: SlurmNode, job: str) -> bool:
    return not is_held(node, job)


def check_that_workers_wait_for_the_producer(node: SlurmNode, workers: str, producer: str) -> None:
    """Requeue the producer; workers finish what is there, and go on when it has started again."""
    node.run("scontrol", "requeue", producer)
    both = (f"{workers}_1", f"{workers}_2")
    for worker in both:
        until(partial(is_held, node, worker), f"{worker} on hold")
    node.start_now(producer)
    for worker in both:
        until(partial(is_released, node, worker), f"the release of {worker}")
        node.start_now(worker)


def kill_processes(node: SlurmNode, job: str) -> None:
    """`kill -9` the shell of a job and what it runs, as the kernel does without memory."""
    own, _, number = job.partition("_")
    wanted = {
        "SLURM_CONF": node.environment["SLURM_CONF"],
        "SLURM_ARRAY_JOB_ID": own,
        "SLURM_ARRAY_TASK_ID": number,
    }
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if wanted.items() <= process.environ().items():
                process.kill()


async def check_queue(run: Path) -> None:
    """Read the queue that the server has left: each request was accepted and ended once."""
    options = ("--dir", str(run / "data"), "--appendonly", "yes")
    with running_server(Path(shutil.which("redis-server") or ""), options) as url:
        queue = Queue(connect(url))
        stats = await queue.stats()
        assert (stats.counters["submitted"], stats.counters["succeeded"]) == (NUM_LINES, NUM_LINES)
        assert (stats.is_done, stats.num_dead) == (True, 0)
        assert await audit(queue) == []
        await queue.redis.aclose()

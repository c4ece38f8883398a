"""A Slurm of one node for the tests of docs/slurm, without systemd, cgroups or accounting. It needs root."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gristmill.local.processes import die_with_parent, free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "redis-server")
WAIT_S = 180.0
PARTITION = "main"
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_min_interval=100000,sched_interval=1,batch_sched_delay=0
ReturnToService=2
KillWait={kill_wait_s}
JobRequeue=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=32 RealMemory=100000 State=UNKNOWN
PartitionName={partition} Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A running Slurm.

    Attributes:
        environment: Environment in which its commands reach it.
    """

    environment: dict[str, str]

    def run(self, *words: str) -> str:
        """Run a command of Slurm and return what it prints."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """Return the state of a job such as RUNNING; of an array's member by its id and number."""
        return self.field(job, "JobState")

    def field(self, job: str, name: str) -> str:
        """Return a field of `scontrol show job`."""
        words = self.run("scontrol", "show", "job", job).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))

    def end_jobs(self) -> None:
        """Cancel all jobs, and wait until nothing of them runs."""
        self.run("scancel", f"--partition={PARTITION}")
        until(lambda: not self.run("squeue", "--noheader"), "the end of all jobs")

    def restart(self, job: str) -> None:
        """Requeue a job, as preemption does, and start it as soon as its processes have ended."""
        self.run("scontrol", "requeue", job)
        self.start_now(job)

    def start_now(self, job: str) -> None:
        """Wait until a requeued job waits for its new start, and start it.

        slurmd refuses a job that starts in the second in which it was revoked.
        """
        until(lambda: self.state(job) == "PENDING", f"{job} to be pending")
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+2")


def until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.3)


@contextmanager
def slurm_node(folder: Path, kill_wait_s: int) -> Iterator[SlurmNode]:
    """Run a Slurm whose files lie in a folder, for the length of a block."""
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        pytest.fail(
            f"{', '.join(missing)} not on the PATH; apt-get install slurm-wlm munge redis-server"
        )
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir()
    (folder / "munge").chmod(0o711)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=host,
            partition=PARTITION,
            port=free_port(),
            node_port=free_port(),
            folder=folder,
            kill_wait_s=kill_wait_s,
        )
    )
    node = SlurmNode(os.environ | {"SLURM_CONF": str(configuration)})
    munge = [f"--{name}={folder}/munge/{name}" for name in ("pid-file", "log-file", "seed-file")]
    commands: Sequence[Sequence[str]] = (
        ["munged", "-F", "--force", f"--socket={folder}/munge/socket", f"--key-file={key}", *munge],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", host],
    )
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            daemons.append(_started(command, folder / f"{command[0]}.out", node))
            if len(daemons) == 1:
                until((folder / "munge" / "socket").exists, "munged")
        until(lambda: _is_idle(node), "the node to be idle")
        try:
            yield node
        finally:
            node.end_jobs()
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()


def _started(command: Sequence[str], log: Path, node: SlurmNode) -> "subprocess.Popen[bytes]":
    with log.open("wb") as output:
        return subprocess.Popen(
            command, env=node.environment, stdout=output, stderr=output,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )  # fmt: skip


def _is_idle(node: SlurmNode) -> bool:
    words = ("sinfo", "--noheader", "--format=%t")
    done = subprocess.run(words, env=node.environment, capture_output=True, text=True, check=False)
    return done.stdout.strip() == "idle"

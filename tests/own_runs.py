"""`gristmill run` as its users run it, with stub engines unless a test wants true ones."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from command_line import CommandLine

TESTS = Path(__file__).parent
FLAGS = ("--", "--model", "stub", "--kv-cache-memory-bytes", "1")
STUB_PLUGIN = {
    "METADATA": "Metadata-Version: 2.1\nName: stub-command\nVersion: 0\n",
    "entry_points.txt": "[gristmill.commands]\nworker = stub_command:worker\n",
}
"""A distribution that stands before Gristmill on the path, so its command `worker` counts."""


@dataclass(frozen=True, slots=True)
class OwnRuns(CommandLine):
    """Runs commands in a folder, with a Redis only if `redis_url` names one.

    Attributes:
        variables: More environment variables.
        has_stub: False runs true engines.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    has_stub: bool = True

    @property
    def environment(self) -> Mapping[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GRISTMILL_", "VLLM_", "REDIS_URL"))
        }
        url = {"REDIS_URL": self.redis_url} if self.redis_url else {}
        path = {"PYTHONPATH": self._path_with_stub()} if self.has_stub else {}
        return inherited | url | path | dict(self.variables)

    def _path_with_stub(self) -> str:
        plugin = self.folder.parent / "plugin"
        info = plugin / "stub_command-0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        for name, text in STUB_PLUGIN.items():
            (info / name).write_text(text)
        inherited = os.environ.get("PYTHONPATH")
        return os.pathsep.join(filter(None, [str(plugin), str(TESTS), inherited]))

    def write_table(self, num_rows: int) -> str:
        """Write a Parquet file with the columns `text` and `n`; return its name."""
        texts = [f"row {number}" for number in range(num_rows)]
        pq.write_table(pa.table({"text": texts, "n": range(num_rows)}), self.folder / "in.parquet")
        return "in.parquet"

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the events of a name in the log of the last workers."""
        (log,) = self.folder.glob("*.log")
        lines = log.read_bytes().splitlines()
        rows = [orjson.loads(line) for line in lines if line.startswith(b"{")]
        return [row for row in rows if row["event"] == event]

    def num_written(self) -> int:
        """Return how many rows the unfinished table has."""
        journals = self.folder.glob("*.parts/*.jsonl")
        return sum(journal.read_bytes().count(b"\n") for journal in journals)

    async def until_written(self, process: asyncio.subprocess.Process, num_rows: int) -> None:
        """Wait until a run has written a number of rows of a table."""
        while self.num_written() < num_rows:
            assert process.returncode is None, await process.communicate()
            await asyncio.sleep(0.01)


def family_of(process: asyncio.subprocess.Process) -> list[psutil.Process]:
    """Return the processes that a command has started."""
    return psutil.Process(process.pid).children(recursive=True)


async def all_gone(processes: list[psutil.Process]) -> bool:
    """Return True if all of them end within the time that a worker needs to notice."""
    return not (await asyncio.to_thread(psutil.wait_procs, processes, 20))[1]

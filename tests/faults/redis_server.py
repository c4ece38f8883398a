"""A Redis with an append-only file that can die, come back, and be put into every bad state we know."""

import asyncio
import contextlib
import random
import signal
import socket
import subprocess
from itertools import count
from pathlib import Path

from redis.asyncio import Redis

from gristmill.local.processes import die_with_parent
from gristmill.shared.connection import connect

SNAPSHOT = "snapshot.rdb"
DEAD_ADDRESS = ("127.0.0.1", "1")


_candidates = count(random.randrange(20_000, 26_000))


def lasting_port() -> int:
    """Return a port that nobody else is given while its server is down: below those of connections."""
    for port in _candidates:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("unreachable: the candidates do not end")


def _direct(url: str) -> Redis:
    client = connect(url, 10)
    assert isinstance(client, Redis)
    return client


class RedisServer:
    """One server process on a fixed port and folder.

    Args:
        binary: redis-server or valkey-server.
        folder: Where its append-only file lies.
        appendfsync: `everysec` or `always`.
    """

    def __init__(self, binary: Path, folder: Path, appendfsync: str = "everysec") -> None:
        self._binary, self._folder, self._appendfsync = binary, folder, appendfsync
        self.port = lasting_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.admin = _direct(self.url)

    async def start(self) -> None:
        """Start it, and wait until it has read its file."""
        self._process = subprocess.Popen(
            [
                *(str(self._binary), "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--save", "", "--appendonly", "yes", "--appendfsync", self._appendfsync),
                *("--dir", str(self._folder), "--dbfilename", SNAPSHOT),
                *("--auto-aof-rewrite-percentage", "0"),
            ],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )
        while not await asyncio.to_thread(self._answers):
            assert self._process.poll() is None, "the server did not start"
            await asyncio.sleep(0.01)
        await self.admin.connection_pool.disconnect()

    def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()
        self._process.wait()

    async def close(self) -> None:
        """End it."""
        await self.admin.aclose()
        self._process.send_signal(signal.SIGCONT)
        self.kill()

    def pause(self) -> None:
        """Stop the process; connections stay open and nothing answers."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    async def restart(self) -> None:
        """Kill it and start it again on its file."""
        self.kill()
        await self.start()

    def written_bytes(self) -> int:
        """Return the size of the append-only file."""
        return self._append_file().stat().st_size

    def lose_from(self, size: int) -> None:
        """Cut the file of the dead server: what a power failure does to writes not yet on the disk."""
        with self._append_file().open("r+b") as file:
            file.truncate(size)

    async def drop_connections(self) -> None:
        """CLIENT KILL of everybody else."""
        await self.admin.client_kill_filter(_type="normal", skipme=True)

    async def forget_scripts(self) -> None:
        """SCRIPT FLUSH."""
        await self.admin.script_flush()

    async def fill(self) -> None:
        """Be at `maxmemory`."""
        await self.admin.config_set("maxmemory", 1)

    async def empty(self) -> None:
        """Have no `maxmemory` again."""
        await self.admin.config_set("maxmemory", 0)

    async def fail_snapshots(self) -> None:
        """MISCONF: a snapshot cannot be written, so all writes are refused."""
        (self._folder / SNAPSHOT).mkdir()
        await self.admin.config_set("save", "3600 1000000")
        await self._snapshot("err")

    async def mend_snapshots(self) -> None:
        """Take writes again."""
        (self._folder / SNAPSHOT).rmdir()
        await self._snapshot("ok")
        (self._folder / SNAPSHOT).unlink()
        await self.admin.config_set("save", "")

    async def _snapshot(self, status: str) -> None:
        while True:
            info = await self.admin.info("persistence")
            if info["rdb_last_bgsave_status"] == status:
                return
            if not info["rdb_bgsave_in_progress"]:
                await self.admin.bgsave(schedule=False)
            await asyncio.sleep(0.01)

    async def demote(self) -> None:
        """Be the replica of a dead primary: READONLY."""
        await self.admin.replicaof(*DEAD_ADDRESS)

    async def promote(self) -> None:
        """Be a primary again."""
        await self.admin.replicaof("NO", "ONE")

    def _append_file(self) -> Path:
        (file,) = (self._folder / "appendonlydir").glob("*.incr.aof")
        return file

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith(b"+PONG")
        except OSError:
            return False

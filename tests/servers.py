"""Redis as people run it: a cluster of three, a primary with replicas and sentinels. On free ports, gone after use."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gristmill.local.processes import die_with_parent, free_port
from gristmill.local.redis_server import running_server, server_binary
from gristmill.shared.redis_url import parse

OPERATIONS = (Path(__file__).resolve().parents[1] / "docs" / "operations.md").read_text()
NUM_SLOTS = 16_384
SERVICE = "mymaster"
DOWN_AFTER_MS = 1000
START_TIMEOUT_S = 20.0


def ask(port: int, *words: str | int) -> str:
    """Send one command to a server of this machine; returns its answer as it is written.

    Raises:
        RuntimeError: It answered with an error.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(f"{' '.join(map(str, words))}\r\n".encode())
        answer = connection.recv(65_536).decode()
    if answer.startswith("-"):
        raise RuntimeError(f"{words[0]}: {answer.strip()}")
    return answer


def ask_all(url: str, *words: str | int) -> None:
    """Send one command to each server of a URL, as the user who may do everything."""
    for _, port in parse(url).nodes:
        ask(port, *words)


def with_user(url: str, user: str, password: str) -> str:
    """Return the URL under which a user comes in."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}:{password}@{rest.rpartition('@')[2]}"


def with_least_user(url: str) -> str:
    """Return the URL of the user of docs/operations.md, made with the lines that stand there."""
    for rights in re.findall(r"^ACL SETUSER gristmill (?!.*sentinel).*", OPERATIONS, re.MULTILINE):
        ask_all(url, *rights.split())
    return with_user(url, "gristmill", "password")


def without_dangerous(url: str) -> str:
    """Return the URL of a user who has only our keys and nothing of `@dangerous`."""
    ask_all(url, "ACL", "SETUSER", "tame", "on", ">tame", "~gm:*", "+@all", "-@dangerous")
    return with_user(url, "tame", "tame")


def port_of(url: str) -> int:
    """Return the port of a URL with one host."""
    ((_, port),) = parse(url).nodes
    return port


def own_address() -> str:
    """Return an address of this machine that is not the loopback address; skip without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has only a loopback address")
        address: str = probe.getsockname()[0]
    return address


def process_id(port: int) -> int:
    """Return the process of the server on a port."""
    return int(ask(port, "INFO", "server").partition("process_id:")[2].partition("\r")[0])


def kill(port: int) -> None:
    """`kill -9` the server on a port."""
    os.kill(process_id(port), signal.SIGKILL)


def until(condition: "Sequence[tuple[int, tuple[str, ...], str]]") -> None:
    """Wait until each port answers its command with the text."""
    deadline = time.monotonic() + START_TIMEOUT_S
    for port, words, text in condition:
        while text not in ask(port, *words):
            assert time.monotonic() < deadline, f"port {port} never said {text}"
            time.sleep(0.02)


@contextmanager
def running_cluster(
    binary: Path | None = None, tls: Sequence[str] = (), has_replica: bool = False
) -> Iterator[str]:
    """Run a cluster of three primaries, the slots spread evenly, for the length of a block; yields its URL.

    Args:
        binary: Which server; `server_binary()` unless given.
        tls: Options of TLS but the port; the URL then is rediss+cluster://.
        has_replica: Whether a fourth node follows the first, which is the first of the URL.
    """
    with ExitStack() as stack:
        nodes = [_ClusterNode.start(stack, binary, tls) for _ in range(3 + has_replica)]
        for number, node in enumerate(nodes):
            if number < 3:
                first, end = (NUM_SLOTS * n // 3 for n in (number, number + 1))
                ask(node.port, "CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            ask(node.port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            met = node.tls_port or node.port
            ask(nodes[0].port, "CLUSTER", "MEET", "127.0.0.1", met, node.bus_port)
        for text in ("cluster_state:ok", f"known_nodes:{len(nodes)}"):
            until([(node.port, ("CLUSTER", "INFO"), text) for node in nodes])
        if has_replica:
            first_id = ask(nodes[0].port, "CLUSTER", "MYID").split("\r\n")[1]
            ask(nodes[3].port, "CLUSTER", "REPLICATE", first_id)
            until([(nodes[3].port, ("INFO", "replication"), "master_link_status:up")])
            until([(node.port, ("CLUSTER", "NODES"), f"slave {first_id}") for node in nodes])
        scheme = "rediss+cluster" if tls else "redis+cluster"
        yield f"{scheme}://" + ",".join(f"127.0.0.1:{node.tls_port or node.port}" for node in nodes)


@dataclass(frozen=True, slots=True)
class _ClusterNode:
    port: int
    bus_port: int
    tls_port: int | None

    @classmethod
    def start(cls, stack: ExitStack, binary: Path | None, tls: Sequence[str]) -> "_ClusterNode":
        bus_port, tls_port = free_port(), free_port() if tls else None
        options = (
            "--appendonly", "no", "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
            "--cluster-port", str(bus_port), *(("--tls-port", str(tls_port), *tls) if tls else ()),
        )  # fmt: skip
        return cls(
            port_of(stack.enter_context(running_server(binary, options))), bus_port, tls_port
        )


@dataclass(frozen=True, slots=True)
class Replicated:
    """A primary, its replicas and the sentinels that watch them.

    Attributes:
        url: For clients, through the sentinels.
        primary: Port of the first primary.
        replicas: Ports.
        sentinels: Ports.
    """

    url: str
    primary: int
    replicas: Sequence[int]
    sentinels: Sequence[int]

    def primary_now(self) -> int:
        """Return the port that the first sentinel names."""
        answer = ask(self.sentinels[0], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(answer.split("\r\n")[4])


@contextmanager
def running_sentinels(
    binary: Path | None = None,
    num_replicas: int = 1,
    num_sentinels: int = 3,
    options: Sequence[str] = ("--appendonly", "no"),
) -> Iterator[Replicated]:
    """Run a primary, its replicas and sentinels of which a majority decides, for the length of a block."""
    with ExitStack() as stack:
        options = (*options, "--repl-diskless-sync-delay", "0")
        primary = port_of(stack.enter_context(running_server(binary, options)))
        following = (*options, "--replicaof", "127.0.0.1", str(primary))
        replicas = [
            port_of(stack.enter_context(running_server(binary, following)))
            for _ in range(num_replicas)
        ]
        until([(port, ("INFO", "replication"), "master_link_status:up") for port in replicas])
        sentinels = [
            stack.enter_context(_running_sentinel(binary, primary, num_sentinels // 2 + 1))
            for _ in range(num_sentinels)
        ]
        for name, number in (
            ("num-slaves", num_replicas),
            ("num-other-sentinels", num_sentinels - 1),
        ):
            text = f"{name}\r\n${len(str(number))}\r\n{number}\r\n"
            until([(port, ("SENTINEL", "MASTER", SERVICE), text) for port in sentinels])
        nodes = ",".join(f"127.0.0.1:{port}" for port in sentinels)
        yield Replicated(f"redis+sentinel://{nodes}/{SERVICE}", primary, replicas, sentinels)


@contextmanager
def _running_sentinel(binary: Path | None, primary: int, quorum: int) -> Iterator[int]:
    port = free_port()
    with TemporaryDirectory(prefix="gristmill-sentinel-") as folder:
        configuration = Path(folder) / "sentinel.conf"
        configuration.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary} {quorum}\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {SERVICE} 5000\n"
        )
        process = subprocess.Popen(
            [str(binary or server_binary()), str(configuration), "--sentinel"],
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not answers(port):
                assert time.monotonic() < deadline, "the sentinel did not start"
                time.sleep(0.01)
            yield port
        finally:
            process.terminate()
            process.wait()


def answers(port: int) -> bool:
    """Return whether the server on a port answers a PING."""
    try:
        return ask(port, "PING").startswith("+PONG")
    except OSError:
        return False

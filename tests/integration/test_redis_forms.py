"""Redis as people run it: each form of REDIS_URL carries a request through a worker process to its result."""

import re
from pathlib import Path
from uuid import uuid4

import pytest
from certificates import make_certificates
from redis.exceptions import AuthenticationError, ConnectionError, ResponseError
from servers import ask, port_of, running_cluster, running_sentinels, with_user
from workers import STUB, worker_process

from gristmill.local.processes import free_port
from gristmill.local.redis_server import running_server
from gristmill.producer import Client
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue

OPERATIONS = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
PASSWORD = "p@ss/w?rd#1"
ENCODED = "p%40ss%2Fw%3Frd%231"


async def serve_one(url: str, log: Path) -> None:
    """Submit a request and wait for its result, which a worker process writes."""
    redis = connect(url)
    queue = Queue(redis, f"test-{uuid4().hex[:12]}", Limits(lease_ms=10_000))
    async with worker_process(STUB, url, queue, log) as worker, Client(queue=queue) as client:
        result = await client.wait(await client.submit({"prompt": "x"}), 20)
        assert await worker.terminate() == 0
    assert result.is_success
    assert PASSWORD not in worker.log.read_text()
    assert ENCODED not in worker.log.read_text()


@pytest.mark.parametrize("user", ["", "default"])
async def test_password(user: str, tmp_path: Path) -> None:
    with running_server() as url:
        ask(port_of(url), "CONFIG", "SET", "requirepass", PASSWORD)
        for refused in (url, with_user(url, user, "wrong")):
            redis = connect(refused)
            with pytest.raises(AuthenticationError):
                await redis.ping()
            await redis.aclose()
        await serve_one(with_user(url, user, ENCODED), tmp_path / "log")


async def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with running_server(options=("--unixsocket", str(path))) as url:
        ask(port_of(url), "CONFIG", "SET", "requirepass", PASSWORD)
        await serve_one(f"unix://:{ENCODED}@{path}?db=3", tmp_path / "log")


async def test_database_of_the_url_is_used() -> None:
    with running_server() as url:
        redis = connect(f"redis://127.0.0.1:{port_of(url)}/5")
        await redis.set("gm:x", 1)
        await redis.aclose()
        assert "db5:keys=1" in ask(port_of(url), "INFO", "keyspace")


# -- TLS ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a private CA (ca.crt), a server's pair for 127.0.0.1 and a client's pair."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


def tls_options(folder: Path, port: int) -> tuple[str, ...]:
    """Options of a server that speaks TLS on one port more, to clients with a certificate."""
    return (
        "--tls-port", str(port), "--tls-ca-cert-file", str(folder / "ca.crt"),
        "--tls-cert-file", str(folder / "server.crt"), "--tls-key-file", str(folder / "server.key"),
    )  # fmt: skip


async def test_tls_with_a_private_ca(
    redis_server: Path, certificates: Path, tmp_path: Path
) -> None:
    port = free_port()
    pair = f"ssl_certfile={certificates}/client.crt&ssl_keyfile={certificates}/client.key"
    trusted = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificates}/ca.crt&{pair}"
    refused = [
        f"rediss://127.0.0.1:{port}/0",  # an unknown CA
        f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificates}/ca.crt",  # no certificate of ours
        f"rediss://localhost:{port}/0?ssl_ca_certs={certificates}/ca.crt&{pair}",  # another name
    ]
    with running_server(redis_server, tls_options(certificates, port)):
        for url in refused:
            redis = connect(url)
            with pytest.raises(ConnectionError):
                await redis.ping()
            await redis.aclose()
        await serve_one(trusted, tmp_path / "log")
        redis = connect(f"{refused[2]}&ssl_check_hostname=false")
        assert await redis.ping()
        await redis.aclose()


async def test_tls_to_a_cluster(redis_server: Path, certificates: Path, tmp_path: Path) -> None:
    options = ("--tls-cluster", "yes", "--tls-replication", "yes", "--tls-auth-clients", "no")
    with running_cluster(redis_server, tls=tls_options(certificates, 0)[2:] + options) as url:
        await serve_one(f"{url}?ssl_ca_certs={certificates}/ca.crt", tmp_path / "log")


# -- Sentinel and Cluster ----------------------------------------------------------------------------


async def test_sentinels_with_passwords_of_their_own(tmp_path: Path) -> None:
    (rights,) = re.findall(r"^ACL SETUSER gristmill .*sentinel.*", OPERATIONS, re.MULTILINE)
    with running_sentinels(num_replicas=0, num_sentinels=1) as replicated:
        ask(replicated.primary, "CONFIG", "SET", "requirepass", PASSWORD)
        ask(replicated.sentinels[0], *rights.split())
        ask(replicated.sentinels[0], "ACL", "SETUSER", "default", "off")
        url = with_user(replicated.url, "default", ENCODED)
        login = "sentinel_username=gristmill&sentinel_password"
        await serve_one(f"{url}/2?{login}=password", tmp_path / "log")
        for refused in (url, f"{url}?{login}=wrong"):
            redis = connect(refused)
            with pytest.raises(ConnectionError, match="No master found"):
                await redis.ping()
            await redis.aclose()


async def test_cluster_with_a_password(tmp_path: Path) -> None:
    with running_cluster() as url:
        for port in [int(node.rpartition(":")[2]) for node in url.split(",")]:
            ask(port, "CONFIG", "SET", "requirepass", PASSWORD)
        redis = connect(with_user(url, "default", "wrong"))
        with pytest.raises(AuthenticationError):
            await redis.ping()
        await redis.aclose()
        await serve_one(with_user(url, "default", ENCODED), tmp_path / "log")


async def test_a_server_that_is_no_cluster_says_so() -> None:
    with running_server() as url:
        redis = connect(f"redis+cluster://127.0.0.1:{port_of(url)}")
        with pytest.raises(ResponseError, match="cluster support disabled"):
            await redis.ping()
        await redis.aclose()

from typing import Any

import pytest
from redis.exceptions import ConnectionError

from gristmill.shared.connection import connect

PACKED_PING = [b"*1\r\n$4\r\nPING\r\n"]


@pytest.mark.parametrize(
    "url",
    ["redis://h:1/2", "rediss://u:p@h", "unix:///tmp/s?db=1", "redis://[::1]:6379",
     "redis+sentinel://h/main", "rediss+sentinel://a,b/main"],
)  # fmt: skip
async def test_client_neither_retries_nor_decodes(url: str) -> None:
    client: Any = connect(url, 12.0)
    options = client.connection_pool.connection_kwargs
    assert options["retry"].get_retries() == 0
    assert (options["socket_timeout"], options["decode_responses"]) == (12.0, False)
    assert client.connection_pool.max_connections > 1000
    assert client.connection_pool.make_connection().pack_command("PING") == PACKED_PING
    await client.aclose()


@pytest.mark.parametrize("url", ["redis+cluster://a,b", "rediss+cluster://u:p@h"])
async def test_cluster_client_neither_retries_nor_decodes(url: str) -> None:
    client: Any = connect(url, 12.0)
    for node in client.startup_nodes:
        connection = node.acquire_connection()
        assert connection.retry.get_retries() == client.retry.get_retries() == 0
        assert (connection.socket_timeout, connection.encoder.decode_responses) == (12.0, False)
        assert node.max_connections > 1000
        assert connection.pack_command("PING") == PACKED_PING
    await client.aclose()


class ClosedWriter:
    """Writes as uvloop does on a transport that is closed already."""

    def writelines(self, _lines: list[bytes]) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>")

    def close(self) -> None:
        """Do nothing more."""


async def test_write_to_a_closed_transport_of_uvloop_is_a_lost_connection() -> None:
    client: Any = connect("redis://h")
    connection = client.connection_pool.make_connection()
    connection._reader, connection._writer = object(), ClosedWriter()
    with pytest.raises(ConnectionError, match="closed=True"):
        await connection.send_packed_command(PACKED_PING, check_health=False)
    await client.aclose()

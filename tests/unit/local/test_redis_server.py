"""The embedded Redis is the process that was started, not what answers at its port."""

import socket
import threading
from contextlib import suppress

import pytest

from gristmill.local.redis_server import embedded_server
from gristmill.shared.errors import GristmillError


def test_what_a_stranger_answers_at_the_port_is_not_believed() -> None:
    heard: list[bytes] = []

    def answer(listener: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = listener.accept()
                heard.append(connection.recv(100))
                connection.sendall(b"+PONG\r\n")
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        port = listener.getsockname()[1]
        with (
            pytest.raises(GristmillError, match=r"(?s)the embedded Redis ended.* in use"),
            embedded_server(port=port, password="secret"),
        ):
            pass
    assert heard == []

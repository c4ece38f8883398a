"""Bounds on the memory that callers use in a gateway, and strings that are not valid text."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from gateways import RunningGateway, problem

from gristmill.producer.gateway import request_body
from gristmill.producer.gateway.http_errors import ApiError
from gristmill.producer.gateway.request_body import MAX_BODIES_BYTES, BodyMemory, read_body


async def test_a_head_without_end_is_cut(gateway: RunningGateway) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 200_000)
    answer = await reader.read(1000)
    assert answer.startswith(b"HTTP/1.1 400")
    writer.close()


def test_bodies_that_are_read_at_a_time_are_bounded() -> None:
    memory = BodyMemory()
    with memory.share() as first:
        first(MAX_BODIES_BYTES)
        with memory.share() as second, pytest.raises(ApiError) as refused:
            second(1)
        assert (refused.value.status, refused.value.code) == (503, "gateway_busy")
    with memory.share() as third:
        third(MAX_BODIES_BYTES)


async def test_a_body_that_stalls_gives_its_share_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: three stalled bodies of one tenant blocked all single requests."""

    class Stalled:
        async def stream(self) -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.Event().wait()

    monkeypatch.setattr(request_body, "MAX_BODY_S", 0.05)
    memory = BodyMemory()
    stalled: Any = Stalled()
    with pytest.raises(ApiError) as refused:
        await read_body(stalled, memory, max_request_bytes=1024)
    assert (refused.value.status, refused.value.code) == (408, "body_timeout")
    with memory.share() as everything:
        everything(MAX_BODIES_BYTES)


async def test_an_id_that_is_no_text_is_refused(api: httpx.AsyncClient) -> None:
    body = b'{"input_file_id": "\\ud800", "endpoint": "/v1/completions"}'
    answer = await api.post(
        "/v1/batches", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert problem(answer)["param"] is not None


async def test_a_filename_that_is_no_text_is_refused(api: httpx.AsyncClient) -> None:
    lines = (
        b"--b",
        b'Content-Disposition: form-data; name="file"; filename="\xff\xfe"',
        b"",
        b"x",
        b"--b",
        b'Content-Disposition: form-data; name="purpose"',
        b"",
        b"batch",
        b"--b--",
        b"",
    )
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = await api.post("/v1/files", content=b"\r\n".join(lines), headers=headers)
    assert answer.status_code == 400
    assert "UTF-8" in problem(answer)["message"]

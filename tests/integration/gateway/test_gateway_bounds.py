"""Bounds on the memory that callers use in a gateway, and strings that are not valid text."""

import asyncio
import threading
from typing import Any

import httpx
import pytest
from gateways import RunningGateway, problem

from gristmill.producer.gateway import request_body
from gristmill.shared import json_parts
from gristmill.shared.json_encoding import MAX_METADATA_BYTES

PLAIN = {"prompt": "one two", "max_tokens": 3}


async def test_a_head_without_end_is_cut(gateway: RunningGateway) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 200_000)
    answer = await reader.read(1000)
    assert answer.startswith(b"HTTP/1.1 400")
    writer.close()


async def test_stalled_bodies_of_one_tenant_stop_no_other_and_not_its_small_ones(
    gateway: RunningGateway, key: str, api: httpx.AsyncClient, other: httpx.AsyncClient
) -> None:
    """Regression: six stalled connections of one tenant made every other call a 503."""
    stalled = [await start_body(gateway, key, "/v1/requests", 40 * 2**20)]
    while not gateway.gateway.body_pools._large._held:
        await asyncio.sleep(0.01)
    stalled += [await start_body(gateway, key, "/v1/requests", 40 * 2**20) for _ in range(5)]
    answers = [await asyncio.wait_for(each.read(600), 5) for each, _ in stalled[1:]]
    assert [answer.split()[1] for answer in answers] == [b"429"] * 5
    large = {"prompt": "x" * 2 * 2**20}
    for caller, body, status in ((api, PLAIN, 202), (other, PLAIN, 202), (other, large, 202), (api, large, 202)):  # fmt: skip
        assert (await caller.post("/v1/requests", json=body)).status_code == status
    for _, writer in stalled:
        writer.close()


@pytest.mark.parametrize(
    ("path", "num_bytes"), [("/v1/requests", 100 * 2**20), ("/v1/batches", 2**20 + 1), ("/v1/files", 2**50)]
)  # fmt: skip
async def test_a_body_is_refused_by_its_declared_length_before_it_comes(
    gateway: RunningGateway, key: str, path: str, num_bytes: int
) -> None:
    reader, writer = await start_body(gateway, key, path, num_bytes)
    assert (await asyncio.wait_for(reader.read(600), 5)).startswith(b"HTTP/1.1 413")
    writer.close()


async def test_a_body_over_the_tenants_bytes_is_refused_before_it_comes(
    gateway: RunningGateway,
) -> None:
    light = await gateway.add_tenant("light", max_bytes=4096)
    reader, writer = await start_body(gateway, light, "/v1/requests", 5000)
    assert (await asyncio.wait_for(reader.read(600), 5)).startswith(b"HTTP/1.1 429")
    writer.close()


@pytest.mark.parametrize("path", ["/v1/requests", "/v1/batches", "/v1/files"])
async def test_no_body_is_read_before_the_key_is_known(gateway: RunningGateway, path: str) -> None:
    """Regression: FastAPI read the body of a new batch first, as many and as long as anybody liked."""
    await gateway.add_tenant("acme")
    reader, writer = await start_body(gateway, "gm-nobody", path, 2**20)
    assert (await asyncio.wait_for(reader.read(600), 5)).startswith(b"HTTP/1.1 401")
    writer.close()


async def start_body(
    gateway: RunningGateway, key: str, path: str, num_bytes: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the head of a call and the first byte of its body."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {num_bytes}\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    )
    writer.write(head.encode() + b"-")
    await writer.drain()
    return reader, writer


async def answer_to(gateway: RunningGateway, call: bytes) -> bytes:
    """Send the bytes of a call and return the beginning of its answer."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(call)
    answer = await asyncio.wait_for(reader.read(1000), 5)
    writer.close()
    return answer


@pytest.mark.parametrize("path", ["/v1/requests", "/v1/batches", "/v1/files"])
async def test_a_call_with_two_lengths_is_refused(
    gateway: RunningGateway, key: str, path: str
) -> None:
    """Regression: limits believed the Content-Length of a body that came in chunks."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 1\r\n"
    )
    answer = await answer_to(
        gateway, head.encode() + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"both Content-Length and Transfer-Encoding" in answer


async def test_invented_methods_share_one_time_series(gateway: RunningGateway) -> None:
    """Regression: each method that a stranger invented stayed in memory, with its 60 KB."""
    for method in (b"INVENTED1", b"INVENTED2" * 1000):
        await answer_to(gateway, method + b" /x HTTP/1.1\r\nHost: x\r\n\r\n")
    async with gateway.caller() as caller:
        metrics = (await caller.get("/metrics")).text
    assert "INVENTED" not in metrics
    assert 'gristmill_gateway_calls_total{method="other",route="none",status="404"}' in metrics


@pytest.mark.parametrize(
    "part",
    [
        b'Content-Disposition: form-data; name="' + b"a" * 70_000,
        b'Content-Disposition: form-data; name="other"\r\n\r\n' + b"a" * 70_000,
    ],
)
async def test_a_form_is_bounded_beside_its_file(api: httpx.AsyncClient, part: bytes) -> None:
    """Regression: the parser kept the name of a part that never ended."""
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = await api.post("/v1/files", content=b"--b\r\n" + part, headers=headers)
    assert answer.status_code == 400
    assert "more than 65,536 bytes beside its file" in problem(answer)["message"]


@pytest.mark.parametrize("path", ["/v1/requests", "/v1/batches", "/v1/files"])
async def test_a_body_that_stalls_gives_its_share_back(
    gateway: RunningGateway, key: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a stalled upload, or body of a new batch, held its memory for ever."""
    monkeypatch.setattr(request_body, "MAX_BODY_S", 0.05)
    reader, writer = await start_body(gateway, key, path, 2**20)
    answer = await asyncio.wait_for(reader.readuntil(b"}}"), 5)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body_timeout" in answer
    assert not gateway.gateway.body_pools._small._held
    writer.close()


async def test_a_body_of_too_many_parts_is_refused_before_it_is_parsed(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: 33 MB of `[],` became 1 GB of objects, and a gateway with 1 GiB was killed."""
    monkeypatch.setattr(json_parts, "MAX_JSON_PARTS", 100)
    answer = await api.post("/v1/requests", content=b'{"prompt":"a","zz":[' + b"[]," * 60)
    assert answer.status_code == 400
    assert "the limit is 100; split" in problem(answer)["message"]


async def test_metadata_over_its_limit_is_refused(api: httpx.AsyncClient) -> None:
    """Regression: 10 MB of metadata stayed in Redis after the request, and no limit counted it."""
    body = {"body": PLAIN, "metadata": {"a": "x" * MAX_METADATA_BYTES}}
    answer = await api.post("/v1/requests", json=body)
    assert answer.status_code == 400
    assert "the limit is 65,536" in problem(answer)["message"]


async def test_a_large_body_is_parsed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: other calls waited for the parse of a large body."""
    for num_bytes, is_in_loop in ((2**20, True), (2**20 + 1, False)):
        found: Any = await request_body.parsed(threading.current_thread, num_bytes, asyncio.Lock())  # type: ignore[arg-type]
        assert (found is threading.current_thread()) == is_in_loop


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

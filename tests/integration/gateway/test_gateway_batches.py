"""Files and batches through OpenAI's own client, and Gristmill's fields and calls beyond it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx
import openai
import orjson
import pytest
from batches import chat, jsonl, stewarded
from gateways import RunningGateway, gateway_settings, problem, running_gateway
from openai import AsyncOpenAI
from openai.types import Batch
from openai.types.chat import ChatCompletion

from gristmill.shared.queue import Queue

CHAT: Final = "/v1/chat/completions"
LINES = jsonl([chat("a"), chat("b")])
BOUNDARY = "----boundary"


@pytest.fixture
async def client(gateway: RunningGateway, key: str) -> AsyncIterator[AsyncOpenAI]:
    async with gateway.openai(key) as client:
        yield client


async def ended_of(client: AsyncOpenAI, gateway: RunningGateway, batch_id: str) -> Batch:
    """Act as the steward until a batch has ended, and return the batch."""
    async with stewarded(gateway.gateway.batches):
        while (batch := await client.batches.retrieve(batch_id)).status != "completed":
            await asyncio.sleep(0.05)
    return batch


async def test_a_file_is_stored_listed_read_and_deleted(client: AsyncOpenAI) -> None:
    files = [
        await client.files.create(file=(f"{n}.jsonl", LINES * n), purpose="batch")
        for n in (1, 2, 3)
    ]
    first = files[0]
    assert (first.filename, first.bytes, first.purpose) == ("1.jsonl", len(LINES), "batch")
    assert await client.files.retrieve(first.id) == first
    assert (await client.files.content(files[2].id)).read() == LINES * 3
    assert [file.id async for file in client.files.list(limit=2)] == [f.id for f in files[::-1]]
    assert [f.id async for f in client.files.list(limit=1, order="asc")] == [f.id for f in files]
    assert [f async for f in client.files.list(purpose="batch_output")] == []
    assert (await client.files.delete(first.id)).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            await call(first.id)


async def test_a_file_may_say_when_it_expires(client: AsyncOpenAI) -> None:
    file = await client.files.create(
        file=("a.jsonl", LINES), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )  # fmt: skip
    assert file.expires_at == file.created_at + 3600
    with pytest.raises(openai.BadRequestError, match="use 3,600 to 2,592,000"):
        await client.files.create(
            file=("a.jsonl", LINES), purpose="batch", expires_after={"anchor": "created_at", "seconds": 1}
        )  # fmt: skip


@pytest.mark.usefixtures("worker")
async def test_a_batch_runs_from_file_to_file(client: AsyncOpenAI, gateway: RunningGateway) -> None:
    file = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
    made = await client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"job": "nightly"}
    )
    assert (made.status, made.metadata) == ("validating", {"job": "nightly"})
    ended = await ended_of(client, gateway, made.id)
    assert (ended.status, ended.request_counts and ended.request_counts.completed) == (
        "completed",
        2,
    )
    assert ended.output_file_id
    rows = (await client.files.content(ended.output_file_id)).text.splitlines()
    assert len(rows) == 2
    row = orjson.loads(rows[0])
    assert row["made_by"].keys() >= {"model", "engine", "worker"}
    assert ChatCompletion.model_validate(row["response"]["body"]).choices
    with pytest.raises(openai.BadRequestError):
        await client.batches.cancel(made.id)
    await client.files.delete(ended.output_file_id)
    with pytest.raises(openai.NotFoundError):  # not a 200 whose body breaks off
        await client.get(f"/batches/{made.id}/results", cast_to=bytes)


async def test_batches_are_listed_in_pages_and_cancelled(client: AsyncOpenAI) -> None:
    file = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
    made = [
        await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        for _ in range(3)
    ]
    assert [b.id async for b in client.batches.list(limit=2)] == [b.id for b in made[::-1]]
    assert (await client.batches.cancel(made[0].id)).status == "cancelling"
    with pytest.raises(openai.BadRequestError, match="has not ended"):
        await client.files.delete(file.id)
    for call in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            await call("batch_nothing")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/nothing"}, None),
        ({"completion_window": "soon"}, None),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after"),
        ({"priority": "now"}, "priority"),
        ({"surprise": 1}, "surprise"),
        ({"input_file_id": None}, "input_file_id"),
    ],
)  # fmt: skip
async def test_a_batch_that_breaks_a_rule_names_it(
    api: httpx.AsyncClient, client: AsyncOpenAI, change: dict[str, object], param: str | None
) -> None:
    file = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
    body: dict[str, object] = {"input_file_id": file.id, "endpoint": CHAT}
    answer = await api.post("/v1/batches", json=body | change)
    error = problem(answer)
    assert answer.status_code == 400
    assert (error["param"] or "").partition(".")[0] == (param or "")


async def test_windows_and_our_own_fields_are_taken(
    api: httpx.AsyncClient, client: AsyncOpenAI
) -> None:
    file = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
    for window, seconds in (("90s", 90), ("30m", 1800), ("7d", 7 * 86400)):
        body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": window}
        made = (
            await api.post("/v1/batches", json=body | {"mode": "lenient", "order": "input"})
        ).json()
        assert made["expires_at"] - made["created_at"] == seconds
        assert (made["mode"], made["order"]) == ("lenient", "input")
        assert not {"tenant", "path", "closing", "is_announced"} & made.keys()


async def test_unfinished_batches_of_a_tenant_are_bounded(gateway: RunningGateway) -> None:
    async with gateway.openai(await gateway.add_tenant("small", max_batches=1)) as client:
        file = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
        options = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        await client.batches.create(**options)  # type: ignore[arg-type]  # a dict of literals
        with pytest.raises(openai.RateLimitError) as caught:
            await client.batches.create(**options)  # type: ignore[arg-type]
        assert caught.value.code == "limit_reached"


async def test_a_batch_and_its_lines_stay_in_the_highest_lane(
    gateway: RunningGateway, api: httpx.AsyncClient, client: AsyncOpenAI
) -> None:
    lines = jsonl([chat("a"), chat("b") | {"priority": "high"}])
    file = await client.files.create(file=("in.jsonl", lines), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT}
    refused = await api.post("/v1/batches", json=body | {"priority": "high"})
    assert (refused.status_code, problem(refused)["code"]) == (403, "priority_not_allowed")
    made = (await api.post("/v1/batches", json=body)).json()
    batches = gateway.gateway.batches
    async with stewarded(batches):
        while (batch := await client.batches.retrieve(made["id"])).status != "failed":
            await asyncio.sleep(0.05)
    assert batch.errors
    assert batch.errors.data
    (error,) = batch.errors.data
    assert (error.line, error.code) == (2, "priority_not_allowed")


@pytest.mark.usefixtures("worker")
async def test_rows_can_be_followed_while_a_batch_runs(
    api: httpx.AsyncClient, client: AsyncOpenAI, gateway: RunningGateway
) -> None:
    lines = jsonl([chat(str(n)) for n in range(20)])
    file = await client.files.create(file=("in.jsonl", lines), purpose="batch")
    made = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="1h")  # type: ignore[arg-type]
    following = asyncio.create_task(
        api.get(f"/v1/batches/{made.id}/results", params={"follow": True})
    )
    async with stewarded(gateway.gateway.batches):
        rows = await following
    assert rows.headers["Content-Type"].startswith("application/x-ndjson")
    assert len(rows.text.splitlines()) == 20
    assert (await api.get(f"/v1/batches/{made.id}/results")).text == rows.text


@pytest.mark.usefixtures("worker")
async def test_what_failed_is_run_again_alone(
    api: httpx.AsyncClient, client: AsyncOpenAI, gateway: RunningGateway
) -> None:
    lines = jsonl([chat("good"), chat("bad", stream=True)])
    file = await client.files.create(file=("in.jsonl", lines), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, "mode": "lenient"}
    made = (await api.post("/v1/batches", json=body)).json()
    assert (await api.post(f"/v1/batches/{made['id']}/retry")).status_code == 400
    ended = await ended_of(client, gateway, made["id"])
    assert (ended.request_counts and ended.request_counts.failed) == 1
    hopeless = await api.post(f"/v1/batches/{made['id']}/retry")
    assert (hopeless.status_code, "?all=true" in hopeless.text) == (400, True)
    again = await api.post(f"/v1/batches/{made['id']}/retry", params={"all": True})
    assert again.status_code == 200, again.text
    assert again.json()["retry_of"] == made["id"]


async def test_no_tenant_sees_or_touches_anothers_files_and_batches(
    api: httpx.AsyncClient, other: httpx.AsyncClient, client: AsyncOpenAI
) -> None:
    file = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
    made = await client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h"
    )
    for path in ("files", "batches"):
        assert (await other.get(f"/v1/{path}")).json()["data"] == []
    for method, path in (
        ("GET", f"files/{file.id}"), ("GET", f"files/{file.id}/content"), ("DELETE", f"files/{file.id}"),
        ("GET", f"batches/{made.id}"), ("POST", f"batches/{made.id}/cancel"),
        ("POST", f"batches/{made.id}/retry"), ("GET", f"batches/{made.id}/results"),
    ):  # fmt: skip
        answer = await other.request(method, f"/v1/{path}")
        assert (answer.status_code, problem(answer)["code"]) == (404, "not_found"), path
    stolen = await other.post("/v1/batches", json={"input_file_id": file.id, "endpoint": CHAT})
    assert stolen.status_code == 404
    for page in ("files", "batches"):
        after = {"after": file.id if page == "files" else made.id}
        assert (await other.get(f"/v1/{page}", params=after)).json()["data"] == []
    assert (await api.get(f"/v1/batches/{made.id}")).json()["status"] == "validating"


# -- uploads, byte by byte ------------------------------------------------------------------------------


def part(name: str, value: bytes, filename: str = "") -> bytes:
    extra = f'; filename="{filename}"' if filename else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
    return head.encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


async def post_form(api: httpx.AsyncClient, body: bytes, num_chunks: int = 1) -> httpx.Response:
    async def pieces() -> AsyncIterator[bytes]:
        size = max(1, len(body) // num_chunks)
        for start in range(0, len(body), size):
            yield body[start : start + size]

    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    return await api.post("/v1/files", content=pieces(), headers=headers)


async def test_a_form_in_any_order_and_any_pieces_is_read(api: httpx.AsyncClient) -> None:
    file, purpose = part("file", LINES, "in.jsonl"), part("purpose", b"batch")
    for body in (
        form(file, purpose),
        form(purpose, file),
        form(part("other", b"x"), purpose, file),
    ):
        for num_chunks in (1, 7, len(body)):
            answer = await post_form(api, body, num_chunks)
            assert answer.status_code == 200, answer.text
            found = answer.json()
            assert (found["bytes"], found["filename"]) == (len(LINES), "in.jsonl")


async def test_an_expiry_may_stand_before_the_file_or_after_it(api: httpx.AsyncClient) -> None:
    file, purpose = part("file", LINES, "in.jsonl"), part("purpose", b"batch")
    expiry = [
        part("expires_after[anchor]", b"created_at"),
        part("expires_after[seconds]", b"4000"),
    ]
    bodies = [
        form(purpose, *expiry, file),
        form(file, purpose, *expiry),
        form(expiry[0], file, expiry[1], purpose),
    ]
    for body in bodies:
        found = (await post_form(api, body, 7)).json()
        assert found["expires_at"] - found["created_at"] == 4000


@pytest.mark.parametrize(
    "body",
    [
        b"", b"no form", form(), form(part("purpose", b"batch")), form(part("file", LINES, "a")),
        form(part("file", LINES, "a"), part("purpose", b"fine-tune")),
        form(part("purpose", b"fine-tune"), part("file", LINES, "a")),
        form(part("purpose", b"b" * 2000), part("file", LINES, "a")),
        form(part("purpose", b"batch"), part("file", LINES, "a"), part("file", LINES, "b")),
        form(part("expires_after[seconds]", b"4000"), part("purpose", b"batch"), part("file", LINES, "a")),
        form(part("purpose", b"batch"), part("file", LINES, "a" * 256)),
        form(part("purpose", b"batch"), part("file", LINES, "a"))[:-20],
    ],
)  # fmt: skip
async def test_a_form_that_is_wrong_leaves_nothing(
    api: httpx.AsyncClient, gateway: RunningGateway, tmp_path: Path, body: bytes
) -> None:
    answer = await post_form(api, body)
    assert answer.status_code == 400, answer.text
    problem(answer)
    assert (await api.get("/v1/files")).json()["data"] == []
    assert await asyncio.to_thread(_files_in, tmp_path) == []


async def test_a_file_over_the_limit_is_413_and_gone(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    settings = gateway_settings(redis_url, queue, tmp_path, max_file_bytes=2**20)
    async with running_gateway(settings) as gateway, gateway.caller() as api:
        purpose = part("purpose", b"batch")
        fits = await post_form(api, form(purpose, part("file", b"x" * 2**20, "a")))
        assert fits.status_code == 200
        for size in (2**20 + 1, 2**20 + 2**15):
            over = await post_form(api, form(purpose, part("file", b"x" * size, "a")), 50)
            assert (over.status_code, problem(over)["type"]) == (413, "invalid_request_error")
            assert problem(over)["message"] == (
                "the file has more than 1,048,576 bytes, the limit; split it, or ask the operator to raise"
                " GRISTMILL_MAX_FILE_BYTES"
            )
        told = await api.post("/v1/files", files={"file": b"x" * 2**21}, data={"purpose": "batch"})
        assert told.status_code == 413
        assert "ask the operator to raise GRISTMILL_MAX_FILE_BYTES" in problem(told)["message"]
        assert len((await api.get("/v1/files")).json()["data"]) == 1


async def test_a_tenants_files_stay_within_its_storage_quota(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    quota = 4 * 2**20
    key = await gateway.add_tenant("small", max_storage_bytes=quota)
    async with gateway.caller(key) as api, gateway.openai(key) as client:
        first = await client.files.create(file=("a.jsonl", b"x" * 2**20), purpose="batch")
        used = (await api.get("/v1/tenant")).json()
        assert (used["name"], used["limits"]["max_storage_bytes"]) == ("small", quota)
        assert used["usage"] == {
            "depth": 0, "bytes": 0, "live": 0, "batches": 0, "storage_bytes": 2**20, "tokens_today": 0,
            "tokens_this_month": 0,
        }  # fmt: skip
        with pytest.raises(openai.RateLimitError) as caught:
            await client.files.create(file=("b.jsonl", b"x" * quota), purpose="batch")
        assert caught.value.code == "insufficient_quota"
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert "Retry-After" not in caught.value.response.headers
        assert "the files and results of tenant small have 1,048,576 of 4,194,304 bytes (max_storage_bytes)" in str(caught.value)  # fmt: skip
        assert "delete files, or ask the operator: gristmill tenant change small" in str(caught.value)  # fmt: skip
        body = form(part("purpose", b"batch"), part("file", b"x" * quota, "a"))
        in_chunks = await post_form(api, body, 50)
        assert (in_chunks.status_code, problem(in_chunks)["code"]) == (429, "insufficient_quota")
        assert len(await asyncio.to_thread(_files_in, tmp_path)) == 1
        await client.files.delete(first.id)
        await client.files.create(file=("b.jsonl", b"x" * quota), purpose="batch")
        made = await api.post("/v1/batches", json={"input_file_id": first.id, "endpoint": CHAT})
        assert made.status_code == 404
        full = (await client.files.list()).data[0]
        made = await api.post("/v1/batches", json={"input_file_id": full.id, "endpoint": CHAT})
        assert (made.status_code, problem(made)["code"]) == (429, "insufficient_quota")


async def test_a_caller_who_leaves_in_mid_upload_leaves_nothing(
    gateway: RunningGateway, key: str, tmp_path: Path
) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = form(part("purpose", b"batch"), part("file", b"x" * 3 * 2**20, "a"))
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    )
    writer.write(head.encode() + body[: len(body) // 2])
    await writer.drain()
    while not await asyncio.to_thread(_files_in, tmp_path):
        await asyncio.sleep(0.01)
    writer.close()
    while await asyncio.to_thread(_files_in, tmp_path):
        await asyncio.sleep(0.01)


def _files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]

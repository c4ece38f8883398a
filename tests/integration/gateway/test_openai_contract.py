"""The gateway's answers against the types of OpenAI's client: files, batches, models and errors.

`tests/engine/test_openai_contract_of_answers.py` does the same for the answers of the engine.
"""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from batches import chat, jsonl, stewarded
from gateways import RunningGateway
from openai.pagination import AsyncCursorPage, AsyncPage
from openai.types import Batch, FileDeleted, FileObject, Model
from openai.types.shared import ErrorObject
from openai_types import Comparison

CHAT = "/v1/chat/completions"
DOCS = Path(__file__).parents[3] / "docs"

ADDITIONS = {
    "batch.Batch.mode",
    "batch.Batch.order",
    "batch.Batch.unknown_fields",
    "batch.Batch.warnings",
    "batch.Batch.retry_of",
    "batch.Batch.device_ms",
    "batch.Batch.waiting",
    "batch_request_counts.BatchRequestCounts.cancelled",
    "batch_request_counts.BatchRequestCounts.expired",
    "model.Model.max_model_len",
}
"""Fields that Gristmill adds; the documents name them."""

OF_THE_API = {
    "pagination.AsyncCursorPage.object",
    "pagination.AsyncCursorPage.first_id",
    "pagination.AsyncCursorPage.last_id",
}
"""Fields of OpenAI's API (see its reference) that the types of the client leave out."""

NEVER_SENT = {
    "batch_error.BatchError.param": "the message names the field of the line",
    "error_object.ErrorObject.misalignment": "OpenAI's own review of a conversation",
    "file_object.FileObject.status_details": "OpenAI has deprecated it; a batch has the errors of its file",
    "model.Model.shutdown_date": "a model is served as long as a worker serves it",
}
"""Field of the client's types -> why no answer has it."""


async def ended(api: httpx.AsyncClient, batch: dict[str, Any]) -> dict[str, Any]:
    while True:
        found = (await api.get(f"/v1/batches/{batch['id']}")).json()
        if found["status"] in {"completed", "failed", "expired", "cancelled"}:
            return dict(found)
        await asyncio.sleep(0.05)


async def new_batch(api: httpx.AsyncClient, lines: list[Any], **fields: Any) -> dict[str, Any]:
    files = {"file": ("in.jsonl", jsonl(lines))}
    form = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}  # fmt: skip
    file = (await api.post("/v1/files", files=files, data=form)).json()
    made = await api.post(
        "/v1/batches", json={"input_file_id": file["id"], "endpoint": CHAT} | fields
    )
    return dict(made.json())


async def batches_of_all_kinds(
    api: httpx.AsyncClient, gateway: RunningGateway
) -> list[dict[str, Any]]:
    """Return batches as they are created and end: completed, failed, expired and cancelled."""
    client, good, bad = gateway.gateway.models.queues[0].client, chat("a"), chat("bad", stream=True)
    found = []
    async with stewarded(gateway.gateway.batches):
        found += [await new_batch(api, [bad, b"{"])]
        found += [await ended(api, found[-1])]
        lines = [good, chat("b", colour="red"), bad]
        found += [await new_batch(api, lines, mode="lenient", metadata={"a": "b"})]
        found += [await ended(api, found[-1])]
        retried = await api.post(f"/v1/batches/{found[-1]['id']}/retry?all=true")
        found += [retried.json(), await ended(api, retried.json())]
        await client.pause()
        found += [await new_batch(api, [good], completion_window="1s")]
        found += [await ended(api, found[-1])]
        made = await new_batch(api, [good])
        found += [(await api.post(f"/v1/batches/{made['id']}/cancel")).json()]
        found += [await ended(api, made)]
        await client.resume()
    return found


@pytest.mark.usefixtures("worker")
async def test_files_batches_models_and_errors_have_the_types_of_the_client(
    api: httpx.AsyncClient,
    gateway: RunningGateway,
) -> None:
    found = Comparison()
    batches = await batches_of_all_kinds(api, gateway)
    assert {batch["status"] for batch in batches} >= {
        "validating", "completed", "failed", "expired", "cancelling", "cancelled",
    }  # fmt: skip
    for batch in batches:
        found.add(batch, Batch)
    found.add((await api.get("/v1/batches?limit=2")).json(), AsyncCursorPage[Batch])
    files = (await api.get("/v1/files")).json()
    found.add(files, AsyncCursorPage[FileObject])
    for file in files["data"]:
        found.add((await api.get(f"/v1/files/{file['id']}")).json(), FileObject)
    unused = (await api.post("/v1/files", files={"file": ("a", b"{}")}, data={"purpose": "batch"})).json()  # fmt: skip
    found.add(unused, FileObject)
    found.add((await api.delete(f"/v1/files/{unused['id']}")).json(), FileDeleted)
    models = (await api.get("/v1/models")).json()
    found.add(models, AsyncPage[Model])
    found.add((await api.get(f"/v1/models/{models['data'][0]['id']}")).json(), Model)
    for error in await errors(api):
        found.add(error, ErrorObject)
    assert found.wrong == []
    assert found.extra == ADDITIONS | OF_THE_API
    assert found.never_sent == set(NEVER_SENT)


async def errors(api: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Return errors of several kinds."""
    answers = [
        await api.get("/v1/files/file-no"),
        await api.get("/v1/nothing"),
        await api.put("/v1/batches"),
        await api.post("/v1/batches", json={"endpoint": 1}),
        await api.post("/v1/batches", content=b"{"),
        await api.post("/v1/requests", json={"model": "nobody", "prompt": "hi"}),
        await api.get("/v1/models", headers={"Authorization": "Bearer no"}),
    ]
    assert [answer.status_code for answer in answers] == [404, 404, 405, 400, 400, 404, 401]
    return [answer.json()["error"] for answer in answers]


def test_documents_name_what_gristmill_adds() -> None:
    text = "".join((DOCS / name).read_text() for name in ("batches.md", "gateway.md"))
    words = {word.rpartition(".")[2] for word in re.findall(r"`([\w.]+)`", text)}
    assert {each.rpartition(".")[2] for each in ADDITIONS} - words == set()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"status": "done"}, ["status: 'done' is no"]),
        ({"created_at": "1"}, ["created_at: '1' is no int"]),
        ({"created_at": True}, ["created_at: 'True' is no int"]),
        ({"request_counts": {"total": 1}}, ["request_counts.completed: missing", "request_counts.failed: missing"]),
        ({"errors": {"data": [{"line": "x"}]}}, ["errors.data[0].line: 'x' is no"]),
        ({"metadata": {"a": 1}}, ["metadata.a: '1' is no str"]),
        ({"usage": []}, ["usage: '[]' is no"]),
    ],
)  # fmt: skip
async def test_comparison_finds_what_is_wrong(change: dict[str, Any], wrong: list[str]) -> None:
    batch = {
        "id": "b", "completion_window": "24h", "created_at": 1, "endpoint": CHAT, "input_file_id": "f",
        "object": "batch", "status": "failed",
    }  # fmt: skip
    found = Comparison()
    found.add(batch, Batch)
    assert found.wrong == []
    found.add(batch | change | {"colour": "red"}, Batch)
    assert [line[: len(each)] for line, each in zip(found.wrong, wrong, strict=True)] == wrong
    assert found.extra == {"batch.Batch.colour"}

"""Tenants with data of every kind, and a search for a text in every key and every object."""

from pathlib import Path
from typing import Any

import orjson
from batches import jsonl, upload
from queues import ERROR, a_request, claim, open_worker

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_spec import BatchSpec
from gristmill.producer.batches.creations import CreationKey
from gristmill.producer.batches.lifecycle import advance
from gristmill.producer.batches.upload import Upload
from gristmill.producer.tenants import Tenant, Tenants
from gristmill.shared.keys import DirectoryKeys
from gristmill.shared.operations import Settlement
from gristmill.shared.queue import Queue
from gristmill.shared.request import Request
from gristmill.shared.results import response_outcome


def body_of(marker: str) -> bytes:
    return orjson.dumps({"prompt": f"my {marker} prompt"})


async def found_in_keys(queue: Queue, text: str) -> list[str]:
    """Return the keys of a queue that have a text in their name or value."""
    needle = text.encode()
    keys = {key async for key in queue.redis.scan_iter(match=queue.keys.pattern, count=1000)}
    found = [key for key in keys if needle in key or needle in await _value(queue, key)]
    return sorted(key.decode().removeprefix(queue.keys.prefix) for key in found)


async def _value(queue: Queue, key: bytes) -> bytes:
    redis: Any = queue.redis
    readers = {
        b"string": redis.get,
        b"list": lambda key: redis.lrange(key, 0, -1),
        b"hash": redis.hgetall,
        b"set": redis.smembers,
        b"zset": lambda key: redis.zrange(key, 0, -1),
    }
    kind = await redis.type(key)
    return repr(await readers[kind](key)).encode() if kind in readers else b""


def found_in_objects(folder: Path, text: str) -> list[str]:
    """Return the files below a folder that have a text in their bytes."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return [path.name for path in paths if text.encode() in path.read_bytes()]


async def settle(queue: Queue, tenant: str, worker: str, number: int) -> None:
    """Let a worker answer requests; the answers repeat the tenant's marker."""
    for item in await claim(queue, worker, number):
        answer = orjson.dumps({"choices": [{"text": f"answer {marker_of(tenant)}"}]})
        outcome = response_outcome(1, worker, 200, answer)
        await queue.ack(worker, [Settlement(item.id, item.delivery, "succeeded", outcome)])


def marker_of(tenant: str) -> str:
    """Return a text that only the prompts and answers of a tenant contain."""
    return f"marker-of-{tenant}-z"


async def fill(batches: Batches, *tenants: str) -> None:
    """Give tenants something of every kind: waiting, in flight, delayed, ended, dead, in the inbox, in files."""
    for tenant in tenants:
        await _fill_with_claimed(batches.store.queue, tenant)
    for tenant in tenants:  # only now, or a claim of another tenant would take it
        await _fill_with_waiting(batches.store.queue, tenant)
        await _fill_batches(batches, tenant, marker_of(tenant))


def _request(tenant: str, name: str, **fields: Any) -> Request:
    return a_request(f"{tenant}.{name}", tenant=tenant, body=body_of(marker_of(tenant)), **fields)


async def _fill_with_claimed(queue: Queue, tenant: str) -> None:
    await Tenants(queue.redis).create(Tenant(name=tenant))
    await queue.tenants.set_weights({tenant: 2})
    live = {f"{queue.keys.queue}|{tenant}.live": 1}
    await queue.redis.zadd(DirectoryKeys().live(tenant), live)
    worker = await open_worker(queue, f"worker-{tenant}")
    await queue.submit([_request(tenant, "ended", max_tokens=9), _request(tenant, "ended-2")])
    await settle(queue, tenant, worker, 2)
    await queue.submit([_request(tenant, "dead", max_attempts=1)])
    (dead,) = await claim(queue, worker, 1)
    await queue.nack(worker, dead, 0, ERROR)
    await queue.submit([_request(tenant, f"runs-{n}") for n in range(2)])
    await claim(queue, worker, 2)


async def _fill_with_waiting(queue: Queue, tenant: str) -> None:
    await queue.submit([_request(tenant, f"waits-{n}", deadline_s=900) for n in range(5)])
    await queue.submit(
        [_request(tenant, "later", delay_s=900), _request(tenant, "high", priority="high")]
    )
    body = orjson.loads(body_of(marker_of(tenant)))
    element = orjson.dumps({"body": body, "tenant": tenant})
    await queue.redis.rpush(queue.keys.inbox, element, element)
    await queue.redis.hset(
        queue.keys.of_kind("admitting", f"worker-{tenant}"), f"9{len(tenant)}", element
    )


async def _fill_batches(batches: Batches, tenant: str, marker: str) -> None:
    """Leave a batch that runs, a batch that nobody took up, and an upload that goes on."""
    url = "/v1/completions"
    lines = [{"custom_id": f"c{n}", "method": "POST", "url": url, "body": {"prompt": marker}} for n in range(5)]  # fmt: skip
    file = await upload(batches, jsonl(lines), tenant)
    spec = BatchSpec(input_file_id=file.id, endpoint=url)
    running = await batches.create(tenant, spec)
    await advance(batches.store, running.id, lambda _: True)
    calls = iter([True, True])
    await advance(batches.store, running.id, lambda _: next(calls, False))
    batches.store.storage.write(f"batches/{running.id}/output.1", marker.encode())
    await batches.create(tenant, spec, key=CreationKey.of("nightly", marker.encode()))
    unfinished = Upload(batches.files, tenant)
    await unfinished.__aenter__()
    await unfinished.reserve(9)
    unfinished.write(marker.encode())
    unfinished._opened().close()

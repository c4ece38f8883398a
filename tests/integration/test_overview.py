"""What an operator looks at: queues, workers, batches, dead letters, tenants, the way of one request."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from batches import TENANT, chat, create, open_batches
from queues import (
    BODY,
    ERROR,
    a_request,
    claim,
    claimed_by,
    end_lease,
    fresh_queue,
    open_worker,
    some_requests,
    succeed,
)
from workers import local_worker, settings_for

from gristmill.producer.overview import (
    WorkerView,
    read_batch,
    read_batches,
    read_queue,
    read_tenants,
    read_trail,
)
from gristmill.producer.overview.dead_overview import MAX_LETTER_BYTES, read_dead
from gristmill.producer.overview.queue_overview import WORKERS_A_CALL
from gristmill.producer.tenants import Tenant, Tenants
from gristmill.shared.queue import Queue
from gristmill.shared.worker_load import WorkerLoad
from gristmill.worker.engine import StubEngine


async def dead_letter(queue: Queue, request_id: str, body: bytes = BODY) -> None:
    """Let a request use up its attempts."""
    await queue.submit([a_request(request_id, body=body, max_attempts=1)])
    worker = await open_worker(queue)
    (item,) = await claim(queue, worker)
    assert await queue.nack(worker, item, 0, ERROR) == "dead_lettered"


async def test_queue_has_its_work_and_its_workers(queue: Queue) -> None:
    await claimed_by(queue, "busy", 3)
    await queue.submit(some_requests(2))
    load = WorkerLoad(num_running=3, output_tokens_per_s=120.5, prompt_tokens_per_s=9.0)
    await queue.beat("busy", load.dump())
    await open_worker(queue, "dead")
    await end_lease(queue, "dead")
    view = await read_queue(queue)
    assert (view.backlog.num_queued, view.backlog.num_in_flight, view.num_live) == (2, 3, 1)
    assert [(each.name, each.state, each.num_in_flight) for each in view.workers] == [
        ("busy", "running", 3),
        ("dead", "dead", 0),
    ]
    assert view.workers[0].load == load
    assert (view.output_tokens_per_s, view.prompt_tokens_per_s) == (120.5, 9.0)


async def test_stray_facts_of_a_worker_stop_no_reader(queue: Queue) -> None:
    for number, digits in enumerate((400, 5000)):
        worker = await open_worker(queue, f"w-{number}")
        facts = ("registered_ms", "max_in_flight", "num_devices", "pid", "max_model_len")
        redis: Any = queue.redis
        await redis.hset(queue.keys.worker(worker), mapping=dict.fromkeys(facts, "9" * digits))
        await redis.zadd(queue.keys.workers, {b"w-\xff": 2**42 + 0.5})
    view = await read_queue(queue)
    assert [(each.name, each.pid, each.registered_ms) for each in view.workers] == [
        ("w-0", 0, 0),
        ("w-1", 0, 0),
        ("w-\ufffd", 0, 0),
    ]


async def test_beat_without_a_load_leaves_the_last_one(queue: Queue) -> None:
    await open_worker(queue, "w")
    await queue.beat("w", WorkerLoad(num_running=2).dump())
    await queue.beat("w")
    ((worker),) = (await read_queue(queue)).workers
    assert worker.load == WorkerLoad(num_running=2)


async def test_load_leaves_no_key_of_a_worker_without_a_lease(queue: Queue) -> None:
    await open_worker(queue, "w")
    await queue.deregister("w")
    with pytest.raises(Exception, match="reaped"):
        await queue.beat("w", WorkerLoad().dump())
    assert not await queue.redis.exists(queue.keys.worker("w"))


async def test_hundreds_of_workers_are_all_read(queue: Queue) -> None:
    names = [f"w-{number:04}" for number in range(2 * WORKERS_A_CALL + 1)]
    for name in names:
        await open_worker(queue, name)
    assert [each.name for each in (await read_queue(queue)).workers] == names


async def test_true_worker_says_what_its_engine_does(redis_url: str) -> None:
    async with fresh_queue(redis_url) as queue:
        settings = settings_for(redis_url, queue, lease_s=1)
        async with local_worker(settings, StubEngine()):
            await queue.submit(some_requests(3))
            while not (workers := (await read_queue(queue)).workers) or not has_rates(workers[0]):
                await asyncio.sleep(0.02)
    assert workers[0].served.models
    assert workers[0].max_in_flight > 0


def has_rates(worker: WorkerView) -> bool:
    return worker.load is not None and worker.load.output_tokens_per_s is not None


async def test_batches_of_all_tenants_come_page_by_page(queue: Queue, tmp_path: Path) -> None:
    batches = open_batches(queue, tmp_path)
    made = [(await create(batches, [chat("a")])).id for _ in range(5)]
    seen, after = [], ""
    while True:
        page = await read_batches(queue, [TENANT, "nobody"], after=after, limit=2)
        seen += [each.record.id for each in page.batches]
        if not (after := page.next_after):
            break
    assert seen == sorted(made, reverse=True)
    assert not page.batches[0].is_begun


async def test_batch_tells_progress_time_left_and_its_pause(queue: Queue, tmp_path: Path) -> None:
    batches = open_batches(queue, tmp_path)
    batch = await create(batches, [chat("a")])
    seconds, _ = await queue.redis.time()
    counts = {"total": 100, "completed": 20, "failed": 5}
    running = batch.model_copy(update={"status": "in_progress", "in_progress_at": seconds - 50})
    record = orjson.loads(running.model_dump_json()) | {"request_counts": counts}
    await queue.redis.hset(queue.keys.batch_record(batch.id), "record", orjson.dumps(record))
    view = await read_batch(queue, batch.id)
    assert view is not None
    assert view.share_done == 0.25
    assert view.lines_per_s == pytest.approx(0.5, rel=0.1)
    assert view.remaining_s == pytest.approx(150, rel=0.1)
    await batches.pause(TENANT, batch.id, "me@here", "why not")
    view = await read_batch(queue, batch.id)
    assert view is not None
    assert view.pause is not None
    assert view.remaining_s is None
    assert await read_batch(queue, "batch_unknown") is None


async def test_dead_letters_come_page_by_page_and_large_ones_without_evidence(queue: Queue) -> None:
    for name in ("d-1", "d-2"):
        await dead_letter(queue, name)
    await dead_letter(queue, "d-large", b'{"prompt":"%s"}' % (b"x" * MAX_LETTER_BYTES))
    page = await read_dead(queue, limit=2)
    assert (page.total, [each.id for each in page.letters]) == (3, ["d-large", "d-2"])
    large, small = page.letters
    assert large.letter is None
    assert large.num_bytes > MAX_LETTER_BYTES
    assert small.letter is not None
    assert small.letter.evidence == ERROR
    (last,) = (await read_dead(queue, start=2, limit=2)).letters
    assert last.id == "d-1"
    assert (await read_dead(queue, start=9)).letters == []


async def test_tenants_have_load_limits_and_usage_of_today(queue: Queue) -> None:
    await Tenants(queue.redis).create(Tenant(name="acme", max_depth=7))
    items = await claimed_by(queue, "w", 2, tenant="acme")
    await succeed(queue, "w", items[:1])
    page = await read_tenants(queue)
    acme, default = page.tenants
    assert (acme.name, acme.num_requests, acme.today.requests) == ("acme", 1, 1)
    assert acme.limits is not None
    assert acme.limits.max_depth == 7
    assert (default.name, default.limits) == ("default", None)
    first = await read_tenants(queue, limit=1)
    assert first.next_after == "acme"
    assert [each.name for each in (await read_tenants(queue, after="acme")).tenants] == ["default"]


async def test_trail_follows_a_request_to_its_end(queue: Queue) -> None:
    assert not (await read_trail(queue, "r")).is_known
    secret = b'{"prompt":"secret prompt"}'
    await queue.submit([a_request("r", body=secret, tenant="acme", metadata={"m": "secret note"})])
    assert [step.name for step in (await read_trail(queue, "r")).steps] == ["submitted", "waiting"]
    worker = await open_worker(queue, "w")
    (item,) = await claim(queue, worker)
    running = await read_trail(queue, "r")
    assert [step.name for step in running.steps] == ["submitted", "running"]
    assert (running.worker, running.tenant) == ("w", "acme")
    await queue.nack(worker, item, 60_000, ERROR)
    assert [step.name for step in (await read_trail(queue, "r")).steps] == [
        "submitted",
        "tried",
        "delayed",
    ]
    await queue.redis.zadd(queue.keys.delayed, {"r": 1})
    await succeed(queue, worker, await claim(queue, worker))
    ended = await read_trail(queue, "r")
    assert [step.name for step in ended.steps] == ["submitted", "succeeded"]
    assert "secret" not in repr((running, ended))


async def test_trail_of_a_dead_letter_names_its_reason(queue: Queue) -> None:
    await dead_letter(queue, "d")
    trail = await read_trail(queue, "d")
    assert [step.name for step in trail.steps] == ["submitted", "failed", "dead letter"]
    assert trail.dead is not None
    assert trail.dead.record == b""

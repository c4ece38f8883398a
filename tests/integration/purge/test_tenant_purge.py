"""Purge a tenant while it is in use: its data goes and that of others stays. A search for its prompts proves it."""

import asyncio
import inspect
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from purges import body_of, fill, found_in_keys, found_in_objects, marker_of
from queues import ERROR, a_request, claim, die, open_worker, settlement, some_requests
from workers import local_worker, settings_for

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_state import WORK_OF
from gristmill.producer.batches.file_purge import FilePurge
from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.purge import PurgeReport
from gristmill.producer.tenant_purge import purge_tenant
from gristmill.producer.tenants import Tenants
from gristmill.shared.audit import audit
from gristmill.shared.errors import InvalidRequest, LeaseLost, NotFound
from gristmill.shared.keys import Keys
from gristmill.shared.queue import Queue
from gristmill.shared.scripts import lua_text
from gristmill.worker.engine import StubEngine

MARKER = marker_of("acme")


async def purged(batches: Batches, tenant: str = "acme", **options: Any) -> PurgeReport:
    tenants = Tenants(batches.store.queue.redis)
    return await purge_tenant(tenants, [batches.store], tenant, settle_s=0, **options)


async def test_everything_of_a_tenant_goes_and_nothing_of_another(
    batches: Batches, queue: Queue, tmp_path: Path
) -> None:
    await fill(batches, "acme", "acme-2")
    other = marker_of("acme-2")
    keys_before, objects_before = (
        await found_in_keys(queue, other),
        found_in_objects(tmp_path, other),
    )
    load_before = await queue.tenants.load("acme-2")
    kinds = {key.split(":")[0] for key in await found_in_keys(queue, MARKER)}
    assert kinds == {"request", "result", "dead_letter_info", "inbox", "admitting"}
    assert len(found_in_objects(tmp_path, MARKER)) == 3

    report = await purged(batches)

    assert not report.left
    assert await found_in_keys(queue, MARKER) == []
    assert found_in_objects(tmp_path, MARKER) == []
    assert report.removed["requests"] == 9 + 5
    assert report.removed["results"] == 3 + 9 + 5
    assert {
        "dead letters": 1,
        "files": 2,
        "batches": 2,
        "API keys": 1,
    }.items() <= report.removed.items()
    assert (
        report.removed["inbox elements"],
        report.removed["inbox elements that workers took"],
    ) == (2, 1)
    assert report.num_keys > 0
    assert report.num_objects == len(objects_before)
    assert await found_in_keys(queue, other) == keys_before
    assert found_in_objects(tmp_path, other) == objects_before
    assert await queue.tenants.load("acme-2") == load_before
    assert await queue.tenants.weights() == {"acme-2": 2}
    assert [tenant.name for tenant in await Tenants(queue.redis).list()] == ["acme-2"]
    assert [finding for finding in await audit(queue) if not finding.is_harmless] == []


async def test_no_key_names_a_purged_tenant_but_ids_that_workers_note(
    batches: Batches, queue: Queue
) -> None:
    await fill(batches, "acme")
    await purged(batches)
    assert {key.split(":")[0] for key in await found_in_keys(queue, "acme.")} <= {
        "abort",
        "last_claim",
    }
    named = {key.split(":")[0] for key in await found_in_keys(queue, "acme")}
    assert named <= {
        "abort",
        "last_claim",
        "workers",
        "worker",
        "in_flight",
        "admitting",
    }  # worker-acme


async def test_second_purge_finds_nothing(batches: Batches) -> None:
    await fill(batches, "acme")
    await purged(batches)
    report = await purged(batches)
    assert not report.removed
    assert not report.left


class Killed(BaseException):
    """Stands for `kill -9` between two steps."""


@pytest.mark.parametrize("number", range(1, 11))
async def test_purge_killed_at_any_step_is_finished_by_the_next(
    batches: Batches, queue: Queue, tmp_path: Path, number: int
) -> None:
    await fill(batches, "acme")
    num_told = 0

    def die_at(_: Mapping[str, int]) -> None:
        nonlocal num_told
        num_told += 1
        if num_told == number:
            raise Killed

    with pytest.raises(Killed):
        await purged(batches, tell=die_at)
    report = await purged(batches)
    assert not report.left
    assert await found_in_keys(queue, MARKER) == []
    assert found_in_objects(tmp_path, MARKER) == []


async def test_what_a_worker_settles_after_the_purge_brings_nothing_back(
    batches: Batches, queue: Queue
) -> None:
    await queue.submit([a_request(f"r{n}", tenant="acme", body=body_of(MARKER)) for n in range(4)])
    worker = await open_worker(queue)
    first, second, third, _ = await claim(queue, worker, 4)
    await purged(batches)
    assert sorted((await queue.beat(worker)).abort) == ["r0", "r1", "r2", "r3"]
    assert await queue.ack(worker, [settlement(first)]) == [0]
    assert await queue.nack(worker, second, 0, ERROR) == "stale"
    assert await queue.release(worker, [third]) == 0
    assert await queue.crash(worker, {}) == (0, [])
    await die(queue, worker)
    assert await found_in_keys(queue, MARKER) == []
    assert not (await purged(batches)).left
    assert await audit(queue) == []


async def test_worker_aborts_what_was_purged_and_serves_others(
    batches: Batches, queue: Queue, any_redis_url: str
) -> None:
    engine = StubEngine(token_delay_s=0.05)
    async with local_worker(settings_for(any_redis_url, queue), engine):
        await queue.submit([a_request("long", tenant="acme", body=b'{"prompt":"%s","max_tokens":100000}' % MARKER.encode())])  # fmt: skip
        while (await queue.status(["long"]))[0][0] != "running":
            await asyncio.sleep(0.01)
        assert not (await purged(batches)).left
        await queue.submit(
            [a_request("short", tenant="other", body=b'{"prompt":"x","max_tokens":2}')]
        )
        while (await queue.results(["short"]))[0] is None:
            await asyncio.sleep(0.01)
        while (await queue.stats()).counters["in_flight"] or await queue.redis.exists(
            queue.keys.of_kind("abort", "x")
        ):
            await asyncio.sleep(0.01)
    assert await found_in_keys(queue, MARKER) == []
    assert (await queue.status(["long"]))[0][0] == "unknown"


async def test_producers_of_other_tenants_lose_nothing_meanwhile(
    batches: Batches, queue: Queue
) -> None:
    await fill(batches, "acme")
    is_over, submitted = False, 0

    async def produce() -> None:
        nonlocal submitted
        while not is_over:
            await queue.submit(some_requests(20, tenant="other"))
            submitted += 20

    async def work() -> None:
        worker = await open_worker(queue, "busy")
        while not is_over:
            for item in await claim(queue, worker, 8):
                await queue.ack(worker, [settlement(item)])

    tasks = [asyncio.create_task(produce()), asyncio.create_task(work())]
    report = await purged(batches)
    is_over = True
    await asyncio.gather(*tasks)
    assert not report.left
    results = [key async for key in queue.redis.scan_iter(match=queue.keys.result("*"), count=1000)]
    assert len(set(results)) + (await queue.tenants.load("other"))[0] == submitted
    assert await audit(queue) == []


async def test_steward_that_works_on_a_batch_writes_nothing_more(
    batches: Batches, queue: Queue
) -> None:
    await fill(batches, "acme")
    (batch, *_) = [record.id for record in await batches.store.records.open_batches("acme")]
    leased = await LeasedBatch.take(batches.store, batch)
    assert leased is not None
    assert not (await purged(batches)).left
    with pytest.raises(LeaseLost):
        await leased.commit(leased.record, leased.state.checkpoint)
    with pytest.raises(LeaseLost):
        await queue.submit([a_request("late", tenant="acme")], lease=leased.held)
    await leased.release()
    with pytest.raises(NotFound):
        await LeasedBatch.take(batches.store, batch)
    for work in WORK_OF.values():
        assert await batches.store.due.batches(work) == []
    assert await found_in_keys(queue, batch) == []


async def test_stopped_batch_is_with_no_steward_before_anything_is_removed(
    batches: Batches, queue: Queue
) -> None:
    await fill(batches, "acme", "b")
    (mine, other) = [
        (await batches.store.records.open_batches(tenant))[0].id for tenant in ("acme", "b")
    ]
    leased = await LeasedBatch.take(batches.store, mine)
    assert leased
    assert mine in await FilePurge(batches.store, "acme").stop_batches()
    with pytest.raises(LeaseLost):
        await leased.commit(leased.record, leased.state.checkpoint)
    with pytest.raises(LeaseLost):
        await queue.submit([a_request("late", tenant="acme")], lease=leased.held)
    assert await LeasedBatch.take(batches.store, mine) is None
    assert (await batches.store.records.state(mine)).is_cancelled
    assert await LeasedBatch.take(batches.store, other)
    assert not (await batches.store.records.state(other)).is_cancelled


async def test_object_that_a_steward_wrote_meanwhile_goes_too(
    batches: Batches, tmp_path: Path
) -> None:
    await fill(batches, "acme")
    (batch, *_) = [record.id for record in await batches.store.records.open_batches("acme")]

    def write_late(removed: Mapping[str, int]) -> None:
        if removed.get("batches") == 2:
            batches.store.storage.write(f"batches/{batch}/output.late", MARKER.encode())

    report = await purged(batches, tell=write_late)
    assert report.removed["objects without a record"] == 1
    assert not report.left
    assert found_in_objects(tmp_path, MARKER) == []


async def test_results_of_earlier_versions_are_found_by_their_batch_or_told(
    batches: Batches, queue: Queue
) -> None:
    await fill(batches, "acme")
    batch = (await batches.store.records.open_batches("acme"))[0].id
    old = b'{"id":"%s","status":"succeeded","endpoint":"/v1/completions","digest":"","response":{}}'
    for name in (f"{batch}-7", "of-whom"):
        await queue.redis.set(queue.keys.result(name), old % name.encode(), px=60_000)
    report = await purged(batches)
    assert not report.left
    assert report.unattributed == {"results": 1}
    assert await queue.redis.exists(queue.keys.result("of-whom"))
    assert not await queue.redis.exists(queue.keys.result(f"{batch}-7"))


async def test_dead_inbox_elements_go_if_they_name_the_tenant(
    batches: Batches, queue: Queue
) -> None:
    worker = await open_worker(queue)
    elements = [b'{"tenant":"acme","oops":1}', b'{"tenant":"b","oops":1}', b"not json"]
    await queue.redis.rpush(queue.keys.inbox, *elements)
    for token, _ in (await queue.claim(worker, "n", 1)).inbox:
        await queue.admit_garbage(worker, token, f"inbox-{token}", {})
    report = await purged(batches)
    assert report.removed == {"dead letters": 1}
    assert report.unattributed == {"dead letters": 1}
    assert sorted(letter.record for letter in await queue.dead_letters.newest()) == sorted(
        elements[1:]
    )


async def test_element_without_a_tenant_is_of_the_tenant_default(
    batches: Batches, queue: Queue
) -> None:
    other = orjson.dumps({"body": {"prompt": "x"}, "tenant": "b"})
    await queue.redis.rpush(queue.keys.inbox, *[b'{"prompt":"x"}', other] * 50)
    await queue.redis.rpush(queue.keys.inbox_suspects, b'{"prompt":"x"}', other)
    removed = {"inbox elements": 50, "inbox elements of dead workers": 1}
    assert (await purged(batches, "default")).removed == removed
    assert await queue.redis.lrange(queue.keys.inbox, 0, -1) == [other] * 50
    assert await queue.redis.lrange(queue.keys.inbox_suspects, 0, -1) == [other]


async def test_many_are_removed_in_chunks(batches: Batches, queue: Queue) -> None:
    for _ in range(3):
        await queue.submit(some_requests(400, tenant="acme"))
    told: list[int] = []
    report = await purged(batches, tell=lambda removed: told.append(removed["requests"]))
    assert report.removed == {"requests": 1200, "results": 1200, "entries in lanes": 1200}
    assert len(set(told)) >= 3
    assert max(after - before for before, after in pairwise(told)) <= 500


async def test_tenant_that_still_submits_is_told_of(batches: Batches, queue: Queue) -> None:
    await queue.submit(some_requests(1, tenant="acme"))
    is_over = False

    async def produce() -> None:
        while not is_over:
            await queue.submit(some_requests(5, tenant="acme"))

    task = asyncio.create_task(produce())
    report = await purged(batches)
    is_over = True
    await task
    assert report.left["requests"] > 0
    assert not (await purged(batches)).left


async def test_name_that_no_tenant_can_have_is_refused(batches: Batches) -> None:
    with pytest.raises(InvalidRequest):
        await purged(batches, "a*")


HANDLED = {
    "inbox", "inbox_suspects", "admitting", "request", "attempts", "delayed", "deadlines", "owner", "in_flight", "result", "dead_letters",
    "dead_letter_info", "pending", "pending_sjf", "pending_deadline", "pending_prefix", "parked", "flows", "debt",
    "tenant_weights", "tenant_output_shares", "prefix_groups", "tenant_load", "batch_record", "batch_parts",
    "batch_lease", "batches", "batches_open", "batches_due", "steward_time", "file", "files", "files_expiring",
    "storage", "idempotency", "events",
}  # fmt: skip
WITHOUT_CONTENT = {  # ids, names and counts only
    "scheduling", "pauses", "virtual_time", "workers", "worker", "last_claim", "abort", "batch", "batches_done",
    "finished", "doorbell", "times", "view", "stats", "pace", "usage", "format", "steward_doorbell",
    "wrong_types", "parked_claimable", "producers",
}  # fmt: skip
OF_OTHER_PROGRAMS = {"wrong_type"}  # docs/operations.md says that it stays


def test_every_kind_of_key_is_known_to_the_purge() -> None:
    """If this fails, a new key may hold a tenant's data: handle it in the purge, or list it as without content."""
    lua = Path(__file__).parents[3] / "producer/gristmill/producer/batches/lua/create.lua"
    named = re.findall(
        r"^-- {3}([a-z_]+)(?::<\w+>)* +[A-Z]{3,}",
        lua_text("includes/schema") + lua.read_text(),
        re.M,
    )
    formatted = re.findall(r"\{self\.prefix\}([a-z_]+)", inspect.getsource(Keys))
    assert min(len(named), len(formatted)) > 40
    assert {*named, *formatted} == HANDLED | WITHOUT_CONTENT | OF_OTHER_PROGRAMS

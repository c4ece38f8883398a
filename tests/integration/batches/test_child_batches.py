"""Batches whose lines name models of two queues: a parent, a child in each queue, one row for each line."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from batches import TENANT, chat, files_in
from families import HOME_MODEL, OTHER_MODEL, Family, ids, mixed, open_family
from queues import fresh_queue

from gristmill.producer.batches.child_batches import child_id, children_of
from gristmill.producer.batches.file_purge import FilePurge
from gristmill.producer.batches.lifecycle import advance, ended_children, following, line_validator
from gristmill.producer.batches.objects import BatchError, BatchErrors, public_fields
from gristmill.producer.overview import read_batch
from gristmill.shared.audit import audit
from gristmill.shared.errors import InvalidRequest, NotFound
from gristmill.shared.pauses import batch_scope


async def test_each_queue_runs_its_lines_and_the_rows_are_joined_by_line(
    redis_url: str, tmp_path: Path
) -> None:
    """In a cluster, the two queues have different slots."""
    async with fresh_queue(redis_url) as queue:
        await _check_joined(open_family(queue, tmp_path), tmp_path)


async def _check_joined(family: Family, tmp_path: Path) -> None:
    async with (
        family.worker(family.first, HOME_MODEL).running() as one,
        family.worker(family.second, OTHER_MODEL).running() as two,
    ):
        batch = await family.create(mixed(60), metadata={"team": "a"})
        ended = await family.run(batch)
    assert (ended.status, ended.error_file_id, ended.metadata) == ("completed", None, {"team": "a"})
    counts = ended.request_counts
    assert (counts.total, counts.completed, counts.finished) == (60, 60, 60)
    rows = await family.rows(ended)
    assert ids(rows) == [f"c{i}" for i in range(60)]
    assert [row["id"] for row in rows] == [f"batch_req_{batch.id}-{n}" for n in range(1, 61)]
    first, second = family.first.keys.queue, family.second.keys.queue
    runs = [row["response"]["request_id"].rpartition("-")[0] for row in rows]
    assert runs == [child_id(batch.id, first), child_id(batch.id, second)] * 30
    assert (len(one.answered), len(two.answered)) == (30, 30)
    children = await children_of(family.home.store, (await family.parent(batch)).record)
    tokens = [child.state.record.usage.total_tokens for child in children if child.state]
    assert ended.usage.total_tokens == sum(tokens) > max(tokens) > 0
    assert {path.split("/")[0] for path in files_in(tmp_path)} == {"files", "results"}
    for each in (family.first, family.second):
        assert await audit(each) == []


async def test_the_page_and_top_show_the_counts_that_clients_see(family: Family) -> None:
    await family.worker(family.second, OTHER_MODEL).register()
    async with family.worker(family.first, HOME_MODEL).running():
        batch = await family.create(mixed(6))
        while (await family.seen(batch)).request_counts.completed < 3:
            await family.turn(batch)
    view = await read_batch(family.first, batch.id)
    assert view
    assert (view.record.request_counts, view.share_done) == (
        (await family.seen(batch)).request_counts,
        0.5,
    )
    assert view.remaining_s
    counts = {
        name: child and child.request_counts.completed for name, child in view.children.items()
    }
    assert counts == {family.first.keys.queue: 3, family.second.keys.queue: 0}


async def test_clients_see_one_batch(family: Family) -> None:
    await family.worker(family.first, HOME_MODEL).register()
    await family.worker(family.second, OTHER_MODEL).register()
    batch = await family.create(mixed(6))
    while not (
        children := await children_of(family.home.store, (await family.parent(batch)).record)
    ):
        await family.turn(batch)
    await family.turn(batch)
    assert [each.id for each in (await family.home.batches(TENANT)).data] == [batch.id]
    assert [each.id for each in await family.home.store.records.newest(10)] == [batch.id]
    assert await family.home.store.records.num_open(TENANT) == 1
    for child in children:
        with pytest.raises(NotFound):
            await family.home.batch(TENANT, child.id)
        with pytest.raises(NotFound):
            await family.home.cancel(TENANT, child.id)
    assert not {"children", "home", "queues", "declared"} & public_fields(batch).keys()
    with pytest.raises(InvalidRequest, match="is the input of batch"):
        await family.home.files.delete(TENANT, batch.input_file_id)


@pytest.mark.parametrize(("model", "num_children"), [(HOME_MODEL, 0), (OTHER_MODEL, 1)])
async def test_lines_of_one_queue(family: Family, model: str, num_children: int) -> None:
    async with (
        family.worker(family.first, HOME_MODEL).running(),
        family.worker(family.second, OTHER_MODEL).running(),
    ):
        batch = await family.create([chat(f"c{i}", model=model) for i in range(5)])
        ended = await family.run(batch)
    assert (ended.status, ended.request_counts.completed, ended.model) == ("completed", 5, model)
    assert len((await family.parent(batch)).record.children) == num_children
    assert ended.order == ("input" if num_children else "completion")


async def test_a_declared_model_without_workers_waits_alone(family: Family, tmp_path: Path) -> None:
    family = open_family(family.first, tmp_path, is_declared=True)
    async with family.worker(family.first, HOME_MODEL).running():
        batch = await family.create(mixed(40))
        while (seen := await family.seen(batch)).request_counts.completed < 20:
            await family.turn(batch)
        assert (seen.status, seen.request_counts.finished) == ("in_progress", 20)
        while await family.home.store.due.batches("steps"):
            await family.turn(batch)
        partial = b"".join([piece async for piece in await family.home.results(TENANT, batch.id)])
        rows = [orjson.loads(row) for row in partial.splitlines()]
        assert sorted(ids(rows)) == sorted(f"c{i}" for i in range(0, 40, 2))
        assert all(row["id"].startswith(f"batch_req_{batch.id}-") for row in rows)
        async with family.worker(family.second, OTHER_MODEL).running():
            ended = await family.run(batch)
    assert (ended.status, ended.request_counts.completed) == ("completed", 40)
    assert ids(await family.rows(ended)) == [f"c{i}" for i in range(40)]


BAD = [
    b"{broken",
    chat("c1", model=OTHER_MODEL),
    chat("x", model="unknown"),
    chat("y", "/v1/embeddings"),
]
CODES = ["invalid_json_line", "duplicate_custom_id", "model_not_found", "url_mismatch"]


@pytest.mark.parametrize("pieces", [False, True], ids=["one pass", "in pieces"])
async def test_lenient_each_bad_line_has_one_row(
    family: Family, monkeypatch: pytest.MonkeyPatch, pieces: bool
) -> None:
    if pieces:  # each slice of the validation checks one line
        monkeypatch.setattr(line_validator, "STEP_S", 0)
    async with (
        family.worker(family.first, HOME_MODEL).running(),
        family.worker(family.second, OTHER_MODEL).running(),
    ):
        batch = await family.create([*mixed(8), *BAD, chat("z", model=OTHER_MODEL)], mode="lenient")
        ended = await family.run(batch)
    counts = ended.request_counts
    assert (ended.status, counts.total, counts.completed, counts.failed) == ("completed", 13, 9, 4)
    rows = await family.rows(ended)
    assert [int(row["id"].rpartition("-")[2]) for row in rows] == [*range(1, 9), 13, 9, 10, 11, 12]
    assert [row["response"]["body"]["error"]["code"] for row in rows[9:]] == CODES
    assert "GET /v1/models" in rows[11]["response"]["body"]["error"]["message"]


async def test_strict_a_bad_line_fails_the_file(family: Family) -> None:
    await family.worker(family.first, HOME_MODEL).register()
    await family.worker(family.second, OTHER_MODEL).register()
    ended = await family.run(await family.create([*mixed(8), *BAD]))
    assert ended.status == "failed"
    assert ended.errors
    assert [error.code for error in ended.errors.data] == CODES
    assert (await family.second.stats()).counters.get("submitted", 0) == 0


async def test_a_cancel_in_the_middle_ends_the_lines_of_both(family: Family) -> None:
    async with family.worker(family.first, HOME_MODEL).running():
        await family.worker(family.second, OTHER_MODEL).register()
        batch = await family.create(mixed(40))
        while (await family.seen(batch)).request_counts.completed < 20:
            await family.turn(batch)
        assert (await family.home.cancel(TENANT, batch.id)).status == "cancelling"
        ended = await family.run(batch)
    counts = ended.request_counts
    assert (ended.status, counts.completed, counts.cancelled) == ("cancelled", 20, 20)
    rows = await family.rows(ended)
    assert ids(rows) == [f"c{i}" for i in (*range(0, 40, 2), *range(1, 40, 2))]
    assert {row["error"]["code"] for row in rows[20:]} == {"batch_cancelled"}
    retried = await family.home.retry_failed(TENANT, batch.id)
    async with family.worker(family.second, OTHER_MODEL).running():
        again = await family.run(retried)
    assert (again.status, ids(await family.rows(again))) == (
        "completed",
        [f"c{i}" for i in range(1, 40, 2)],
    )


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
async def test_a_queue_without_a_steward_does_not_keep_a_batch_from_its_end(
    family: Family, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(following, "OVERDUE_S", -1.0)
    await family.worker(family.second, OTHER_MODEL).register()
    async with family.worker(family.first, HOME_MODEL).running():
        window = "1s" if ending == "expired" else "24h"
        batch = await family.create(mixed(10), completion_window=window)
        while (await family.parent(batch)).phase == "validate":
            await family.turn(batch, second=False)
        if ending == "cancelled":
            await family.home.cancel(TENANT, batch.id)
        ended = await family.run(batch, second=False)
    assert (ended.status, ended.request_counts.finished) == (ending, 10)
    assert sorted(ids(await family.rows(ended))) == sorted(f"c{i}" for i in range(10))


async def test_a_child_that_ends_wakes_its_parent(family: Family) -> None:
    async with (
        family.worker(family.first, HOME_MODEL).running(),
        family.worker(family.second, OTHER_MODEL).running(),
    ):
        batch = await family.create(mixed(4))
        while (await family.parent(batch)).phase != "follow":
            await advance(family.home.store, batch.id, lambda _: True)
        await advance(family.home.store, batch.id, lambda _: True)
        assert not await family.home.store.due.batches("files"), "it waits for its children"
        for child in await children_of(family.home.store, (await family.parent(batch)).record):
            while not (await child.store.records.state(child.id)).record.is_final:
                await advance(child.store, child.id, lambda _: True)
            assert [due.batch for due in await family.home.store.due.batches("files")] == [batch.id]
        ended = await family.run(batch)
    assert ended.request_counts.completed == 4


async def test_a_pause_holds_children_that_exist_and_those_that_come(family: Family) -> None:
    await family.worker(family.first, HOME_MODEL).register()
    await family.worker(family.second, OTHER_MODEL).register()
    batch = await family.create(mixed(4))
    assert await family.home.pause(TENANT, batch.id, "me", "early")
    while (await family.parent(batch)).phase != "follow":
        await family.turn(batch)
    await family.turn(batch)
    children = await children_of(family.home.store, (await family.parent(batch)).record)

    async def paused() -> list[bool]:
        found = [await each.store.queue.pauses.of(batch_scope(each.id)) for each in children]
        return [pause is not None for pause in found]

    assert await paused() == [True, True]
    assert await family.home.resume(TENANT, batch.id)
    assert await paused() == [False, False]
    assert await family.home.pause(TENANT, batch.id, "me", "late")
    assert await paused() == [True, True]


async def test_a_pause_that_a_dead_steward_left_on_a_child_goes(family: Family) -> None:
    """It died between the pause of a child and its creation, and the parent was resumed then."""
    second = family.second.keys.queue
    async with (
        family.worker(family.first, HOME_MODEL).running(),
        family.worker(family.second, OTHER_MODEL).running(),
    ):
        batch = await family.create(mixed(4))
        scope = batch_scope(child_id(batch.id, second))
        await family.second.pauses.pause(scope, "me")
        while (await family.parent(batch)).phase != "finalize":
            await family.turn(batch)
        await family.second.pauses.pause(scope, "me")  # its child has ended
        ended = await family.run(batch)
    assert (ended.status, ended.request_counts.completed) == ("completed", 4)
    assert await family.second.pauses.all() == {}


async def test_errors_of_the_tenant_stand_once(family: Family) -> None:
    async with (
        family.worker(family.first, HOME_MODEL).running(),
        family.worker(family.second, OTHER_MODEL).running(),
    ):
        batch = await family.create(mixed(4))
        while (await family.parent(batch)).phase != "finalize":
            await family.turn(batch)
    record = (await family.parent(batch)).record
    errors = BatchErrors(data=(BatchError(code="token_budget_used_up", message="used up"),))
    failed = []
    for child in await children_of(family.home.store, record):
        assert child.state
        update = {"status": "failed", "errors": errors}
        state = replace(child.state, record=child.state.record.model_copy(update=update))
        failed.append(child._replace(state=state))
    assert ended_children.with_outcome(record, failed).errors == errors


async def test_the_children_read_one_object_with_the_queue_of_each_line(
    family: Family, tmp_path: Path
) -> None:
    await family.worker(family.first, HOME_MODEL).register()
    await family.worker(family.second, OTHER_MODEL).register()
    batch = await family.create(mixed(9))
    while not (planned := (await family.parent(batch)).checkpoint.planned):
        await family.turn(batch)
    first, second = planned.values()
    assert first.path == second.path
    assert (tmp_path / first.path).stat().st_size == 2 * 9
    assert (first.num_lines, second.num_lines) == (5, 4)


async def test_purges(family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PLAN_S", -1.0)
    await family.worker(family.second, OTHER_MODEL).register()
    async with family.worker(family.first, HOME_MODEL).running():
        batch = await family.create(mixed(10))
        while (await family.seen(batch)).request_counts.completed < 5:
            await family.turn(batch)
        await _purge(FilePurge(family.home.store.of_queue(family.second.keys.queue), None))
        ended = await family.run(batch)
        assert ended.errors
        assert (ended.status, ended.errors.data[0].code) == ("failed", "queue_purged")
        assert ids(await family.rows(ended)) == [f"c{i}" for i in range(0, 10, 2)]
        other = await family.create(mixed(10))
        while (await family.seen(other)).request_counts.completed < 5:
            await family.turn(other)
    await _purge(FilePurge(family.home.store, TENANT))
    left = [
        key
        async for key in family.second.redis.scan_iter(match=f"{family.second.keys.prefix}batch_*")
    ]
    assert not [key for key in left if batch.id.encode() not in key], (
        "children go with their parent"
    )
    assert files_in(tmp_path) == []


async def _purge(purge: FilePurge) -> None:
    await purge.stop_batches()
    for kind in purge.kinds():
        async for chunk in kind.find():
            await kind.remove(chunk)

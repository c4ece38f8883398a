"""Files in S3 (moto's server, set up as users set up theirs), and a storage that goes away."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from batches import TENANT, all_rows, chat, create, files_in, open_batches, run, upload
from command_line import SettlingWorker
from moto.server import ThreadedMotoServer
from queues import contents

from gristmill.producer.batches import stored_files
from gristmill.producer.batches.lifecycle import advance
from gristmill.producer.batches.storage import Storage
from gristmill.producer.batches.stored_files import UPLOAD_TTL_S
from gristmill.producer.batches.upload import Upload
from gristmill.shared.errors import InvalidRequest, NotFound, SettingsError
from gristmill.shared.queue import Queue


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    login = {"endpoint_url": f"http://{host}:{port}", "key": "key", "secret": "secret"}
    fsspec.config.conf["s3"] = login
    fsspec.filesystem("s3").mkdir("bucket")
    yield "s3://bucket/gristmill"
    del fsspec.config.conf["s3"]
    server.stop()


async def test_a_batch_whose_files_lie_in_s3(queue: Queue, s3_url: str) -> None:
    batches = open_batches(queue, f"{s3_url}/{queue.keys.queue}")
    lines = [chat(f"c{i}") for i in range(300)]
    lines[5]["body"] = 5
    async with SettlingWorker(queue).running():
        ended = await run(batches, await create(batches, lines, mode="lenient", order="input"))
    assert (ended.status, ended.request_counts.completed) == ("completed", 299)
    rows = await all_rows(batches, ended)
    assert [row["custom_id"] for row in rows] == [f"c{i}" for i in range(300) if i != 5] + ["c5"]
    again = await batches.retry_failed(TENANT, ended.id, is_all=True)
    source = await batches.files.get(TENANT, again.input_file_id)
    assert b'"custom_id":"c5"' in b"".join(batches.files.content(source))


async def test_large_objects_of_s3_are_sent_and_read_in_parts(s3_url: str) -> None:
    storage = Storage(s3_url)
    data = bytes(range(256)) * 80_000  # 20 MB: three parts
    with storage.create("large") as stream:
        for start in range(0, len(data), 2**20):
            stream.write(data[start : start + 2**20])
    assert b"".join(storage.chunks("large", 12_345_678)) == data[12_345_678:]
    storage.delete("large")
    with pytest.raises(FileNotFoundError):
        storage.open("large")


async def test_a_storage_that_is_away_while_the_rows_are_assembled(
    queue: Queue, tmp_path: Path
) -> None:
    folder, away = tmp_path / "storage", tmp_path / "away"
    batches = open_batches(queue, folder)
    batch = await create(batches, [chat(f"c{i}") for i in range(50)])
    async with SettlingWorker(queue).running():
        await run(batches, batch, until=lambda record: record.status == "finalizing")
    folder.rename(away)
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            await advance(batches.store, batch.id, lambda _: True)
        assert (await batches.batch(TENANT, batch.id)).status == "finalizing"
        assert await batches.store.due.batches("files") == [], (
            "it is tried again later, not at once"
        )
    shutil.rmtree(folder, ignore_errors=True)
    away.rename(folder)
    ended = await run(batches, batch)
    assert (ended.status, ended.request_counts.completed) == ("completed", 50)
    assert len(await all_rows(batches, ended)) == 50
    assert len(files_in(folder)) == 2


async def test_an_input_that_is_gone_fails_the_batch_when_its_window_is_over(
    queue: Queue, tmp_path: Path
) -> None:
    batches = open_batches(queue, tmp_path)
    batch = await create(batches, [chat("a")], completion_window="1s")
    shutil.rmtree(tmp_path / "files")
    failures = 0
    while not (await batches.batch(TENANT, batch.id)).is_final:
        try:
            await advance(batches.store, batch.id, lambda _: True)
        except FileNotFoundError:
            failures += 1
    ended = await batches.batch(TENANT, batch.id)
    assert failures > 0
    assert ended.errors
    assert (ended.status, ended.errors.data[0].code) == ("failed", "file_not_found")


async def test_expired_files_are_deleted(queue: Queue, tmp_path: Path) -> None:
    batches = open_batches(queue, tmp_path)
    kept = await upload(batches, b"x\n")
    async with Upload(batches.files, TENANT) as file:
        file.write(b"x\n")
        expiring = await file.finish("old.jsonl", expires_after_s=1)
    while not await batches.files.delete_expired():
        pass
    with pytest.raises(NotFound):
        await batches.files.get(TENANT, expiring.id)
    assert (await batches.files.get(TENANT, kept.id)).id == kept.id
    assert len(files_in(tmp_path)) == 1


async def test_what_a_killed_upload_leaves_is_deleted_after_a_day(
    queue: Queue, tmp_path: Path
) -> None:
    batches = open_batches(queue, tmp_path)
    file = await Upload(batches.files, TENANT).__aenter__()  # never exited, as in a killed process
    await asyncio.to_thread(file.write, b"x" * 100_000)
    assert len(files_in(tmp_path)) == 1
    assert (await batches.files.page(TENANT)).data == ()
    assert await batches.files.delete_expired() == 0
    noted: Any
    (noted,) = await queue.redis.zrange(queue.keys.files_expiring, 0, -1)
    await queue.redis.zincrby(queue.keys.files_expiring, -UPLOAD_TTL_S, noted)
    assert await batches.files.delete_expired() == 1
    assert files_in(tmp_path) == []
    with pytest.raises(InvalidRequest, match="took more than a day"):
        await file.finish("late.jsonl")
    assert await contents(queue) == {}


async def test_files_that_batches_read_hold_up_no_deletion(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_files, "MAX_EXPIRED_FILES", 2)
    batches = open_batches(queue, tmp_path)
    expired = [(await create(batches, [chat("a")])).input_file_id for _ in range(5)]
    expired.append((await upload(batches, b"x\n")).id)
    await queue.redis.zadd(
        queue.keys.files_expiring, {name: n for n, name in enumerate(expired, 1)}
    )
    assert await batches.files.delete_expired() == 1
    assert len(files_in(tmp_path)) == 5


async def test_an_id_without_a_file_is_not_swept_for_ever(queue: Queue, tmp_path: Path) -> None:
    """A process that dies while it deletes a file leaves its id; 500 ids would stop every sweep."""
    batches = open_batches(queue, tmp_path)
    await queue.redis.zadd(queue.keys.files_expiring, {f"file-{n}": 1 for n in range(501)})
    file = await upload(batches, b"x\n")
    await queue.redis.zadd(queue.keys.files_expiring, {file.id: 2})
    assert [await batches.files.delete_expired() for _ in range(3)] == [0, 1, 0]
    assert await contents(queue) == {}


def test_a_url_that_nothing_can_reach_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="GRISTMILL_STORAGE_URL 'nowhere://bucket'"):
        Storage("nowhere://bucket")

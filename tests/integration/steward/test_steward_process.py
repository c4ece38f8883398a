"""Steward processes: the jobs that they run or refuse, their stop, and the outages they survive."""

import asyncio
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from redis import Redis
from rq import Callback, Queue, Worker
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.suspension import resume, suspend
from rq.webhook import Webhook
from servers import ask, port_of, process_id, running_cluster, with_user
from stewards import STUB, TRUE, Place, start_steward, steward_process

from gristmill.local.processes import free_port
from gristmill.local.redis_server import running_server


async def test_a_batch_is_noted_at_once(place: Place) -> None:
    async with steward_process(STUB, place.url, place.queue, place.folder) as steward:
        batch = await place.create()
        (note,) = await place.notes(1)
        assert note["batch"] == batch
        assert note["job"].startswith(f"validate-{batch}-0-")
        row = await steward.until("job.finished", job=note["job"])
        assert row["batch"] == batch


async def test_two_stewards_run_each_job_once(place: Place) -> None:
    async with (
        steward_process(STUB, place.url, place.queue, place.folder) as one,
        steward_process(STUB, place.url, place.queue, place.folder) as two,
    ):
        made = [await place.create() for _ in range(30)]
        notes = await place.notes(30)
        assert sorted(note["batch"] for note in notes) == sorted(made)
        assert {note["pid"] for note in notes} <= {one.process.pid, two.process.pid}
        await one.terminate()
        await two.terminate()
        assert len(await place.notes(30)) == 30


async def test_a_job_that_names_another_function_is_refused(place: Place) -> None:
    target = place.folder / "pwned"
    async with steward_process(STUB, place.url, place.queue, place.folder) as steward:
        job = place.rq.enqueue("os.system", f"touch {target}")
        assert (await steward.until("job.refused"))["job"] == job.id
        place.rq.enqueue("note", "batch_after")
        await place.notes(1)
        assert not target.exists()
        assert job.get_status() == "failed"
        assert str(target) not in steward.log.read_text()


@pytest.mark.parametrize("arguments", [(1,), ("a", "b"), ({"a": 1},)])
async def test_a_job_with_other_arguments_is_refused(
    place: Place, arguments: tuple[object, ...]
) -> None:
    async with steward_process(STUB, place.url, place.queue, place.folder) as steward:
        job = place.rq.enqueue("note", *arguments)
        await steward.until("job.refused", job=job.id)


async def test_neither_callbacks_nor_webhooks_of_a_job_run(place: Place) -> None:
    port = free_port()
    listener = await asyncio.start_server(lambda *_: pytest.fail("called"), "127.0.0.1", port)
    async with listener, steward_process(STUB, place.url, place.queue, place.folder) as steward:
        job = place.rq.enqueue(
            "note", "batch_x",
            on_success=Callback("os.system"), on_failure=Callback("os.system"),
            webhooks=[Webhook(f"http://127.0.0.1:{port}/", "finished")],
        )  # fmt: skip
        await steward.until("job.finished", job=job.id)
        place.rq.enqueue("note", "batch_after")
        await place.notes(2)
        assert job.get_status() == "finished"


async def test_a_hash_that_is_no_job_is_skipped(place: Place) -> None:
    place.redis.hset("rq:job:broken", mapping={"data": b"junk", "result_ttl": "soon"})
    place.redis.rpush(place.rq.key, "broken", "absent")
    async with steward_process(STUB, place.url, place.queue, place.folder) as steward:
        place.rq.enqueue("note", "batch_x")
        await place.notes(1)
        assert steward.events("rq.warned") == []


async def test_another_queue_of_rq_is_left_alone(place: Place) -> None:
    other = Queue(f"other-{uuid4().hex[:8]}", connection=place.redis)
    job = other.enqueue("os.getpid")
    before = place.redis.hgetall(job.key)
    async with steward_process(STUB, place.url, place.queue, place.folder):
        await place.create()
        await place.notes(1)
    assert other.get_job_ids() == [job.id]
    assert place.redis.hgetall(job.key) == before


async def test_rq_info_shows_the_steward(place: Place) -> None:
    async with steward_process(STUB, place.url, place.queue, place.folder):
        rq = Path(sys.executable).with_name("rq")
        shown = subprocess.run(
            [rq, "info", "--url", place.url, place.rq.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert place.rq.name in shown
        assert "1 workers, 1 queues" in shown


async def test_a_job_makes_room_when_others_wait(place: Place) -> None:
    async with steward_process(STUB, place.url, place.queue, place.folder):
        place.rq.enqueue("hold", "batch_long")
        place.rq.enqueue("note", "batch_short")
        assert [note["batch"] for note in await place.notes(2)] == ["batch_long", "batch_short"]


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_steward_stops_at_once(place: Place, number: int) -> None:
    async with steward_process(STUB, place.url, place.queue, place.folder) as steward:
        code, seconds = await steward.terminate(number)
        assert (code, place.redis.scard(f"rq:workers:{place.rq.name}")) == (0, 0)
        assert seconds < 4


@pytest.mark.alone
async def test_a_running_job_ends_its_step_at_a_signal(place: Place) -> None:
    async with steward_process(STUB, place.url, place.queue, place.folder) as steward:
        job = place.rq.enqueue("hold", "batch_x")
        await steward.until("job.started", job=job.id)
        code, seconds = await steward.terminate()
        assert code == 0
        assert seconds < 4
        assert job.get_status() == "finished"
        assert len(await place.notes(1)) == 1


@pytest.mark.alone
async def test_a_job_that_does_not_end_is_cancelled(place: Place) -> None:
    async with steward_process(STUB, place.url, place.queue, place.folder) as steward:
        job = place.rq.enqueue("stubborn", "batch_x")
        await steward.until("job.started", job=job.id)
        code, seconds = await steward.terminate()
        assert code == 0
        assert 4 < seconds < 10
        assert job.get_status() == "failed"


@pytest.mark.alone
async def test_a_redis_that_hangs_holds_up_no_exit(tmp_path: Path) -> None:
    with running_server() as url:
        async with steward_process(STUB, url, "test", tmp_path) as steward:
            server = process_id(port_of(url))
            os.kill(server, signal.SIGSTOP)
            try:
                code, seconds = await steward.terminate()
            finally:
                os.kill(server, signal.SIGCONT)
            assert code == 0
            assert seconds < 15


@pytest.mark.parametrize("name", ["", "nap"])
async def test_a_steward_outlives_its_redis(tmp_path: Path, name: str) -> None:
    port = free_port()
    with ExitStack() as stack:
        url = stack.enter_context(running_server(port=port))
        async with steward_process(STUB, url, "test", tmp_path) as steward:
            if name:
                await steward.until("job.started", job=_enqueue(url, name).id)
            stack.close()
            await steward.until("redis.waited_for")
            with running_server(port=port) as url:
                await steward.until("job.finished", job=_enqueue(url, "note").id)
                assert (await steward.terminate())[0] == 0


def _enqueue(url: str, name: str) -> Job:
    with Redis.from_url(url) as redis:
        queue = Queue("gristmill-test", connection=redis, serializer=JSONSerializer)
        job: Job = queue.enqueue(name, "batch_x")
        return job


async def test_a_steward_waits_for_a_redis_that_is_not_there_yet(tmp_path: Path) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    async with steward_process(STUB, url, "test", tmp_path, "redis.waited_for") as steward:
        code, reason = await asyncio.to_thread(_probe, steward.port, "readyz")
        assert (code, "Redis" in reason) == (503, True)
        assert 'gristmill_queue_readable{queue="test"} 0.0' in await _series(steward.port)
        with running_server(port=port):
            await steward.until("steward.started")
            assert await asyncio.to_thread(_probe, steward.port, "healthz") == (200, "ok\n")
            assert await asyncio.to_thread(_probe, steward.port, "readyz") == (200, "ok\n")
            # A failed read counts for two seconds, so that a Redis that hangs is not asked at each scrape.
            series = await _series(steward.port)
            while 'gristmill_queue_readable{queue="test"} 1.0' not in series:
                await asyncio.sleep(0.1)
                series = await _series(steward.port)
            assert 'gristmill_queue_workers{queue="test",state="live"} 0.0' in series
            assert 'gristmill_batches_overdue_seconds{queue="test",work="files"} 0.0' in series
            assert (await steward.terminate())[0] == 0


async def _series(port: int) -> list[str]:
    code, text = await asyncio.to_thread(_probe, port, "metrics")
    assert code == 200
    return text.splitlines()


def _probe(port: int, name: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_a_cluster_needs_another_redis_for_rq(place: Place) -> None:
    with running_cluster() as url:
        refused = start_steward(TRUE, url, place.queue, place.folder)
        assert await asyncio.to_thread(refused.process.wait, 20) == 2
        assert "RQ_REDIS_URL" in refused.log.read_text()
        async with steward_process(
            STUB, url, place.queue, place.folder, RQ_REDIS_URL=place.url
        ) as steward:
            job = place.rq.enqueue("note", "batch_x")
            await steward.until("job.finished", job=job.id)


async def test_a_user_without_rqs_keys_is_told_what_is_missing(place: Place) -> None:
    port = port_of(place.url)
    ask(port, "ACL", "SETUSER", "no-rq", "on", ">hush-hush", "~gm:*", "+@all", "-@dangerous")
    url = with_user(place.url, "no-rq", "hush-hush")
    refused = start_steward(TRUE, url, place.queue, place.folder)
    assert await asyncio.to_thread(refused.process.wait, 20) == 2
    told = refused.log.read_text()
    assert "~gm:* ~rq:* +@all -@dangerous +info" in told
    assert "hush-hush" not in told
    ask(port, "ACL", "SETUSER", "no-rq", "~rq:*", "+info")
    async with steward_process(STUB, url, place.queue, place.folder) as steward:
        await place.create()
        await place.notes(1)
        assert steward.events("rq.warned") == []
        assert "hush-hush" not in steward.log.read_text()


async def test_a_wrong_password_ends_the_command(place: Place) -> None:
    ask(port_of(place.url), "ACL", "SETUSER", "who", "on", ">right-one", "~*", "+@all")
    url = with_user(place.url, "who", "hush-hush")
    refused = start_steward(TRUE, url, place.queue, place.folder)
    assert await asyncio.to_thread(refused.process.wait, 20) == 3
    assert "refused user or password" in refused.log.read_text()
    assert "hush-hush" not in refused.log.read_text()


async def test_a_failed_job_can_be_seen_for_days(place: Place) -> None:
    async with steward_process(STUB, place.url, place.queue, place.folder) as steward:
        job = place.rq.enqueue("os.system", "true")
        await steward.until("job.refused")
        place.rq.enqueue("note", "batch_x")
        await place.notes(1)
        assert isinstance(Job.fetch(job.id, place.redis, JSONSerializer), Job)


async def test_rqs_suspend_pauses_a_steward_and_resume_ends_it(tmp_path: Path) -> None:
    with running_server() as url, Redis.from_url(url) as redis:
        suspend(redis)
        async with steward_process(STUB, url, "test", tmp_path) as steward:
            job = _enqueue(url, "note")
            while [worker.get_state() for worker in Worker.all(redis)] != ["suspended"]:
                await asyncio.sleep(0.02)
            assert Job.fetch(job.id, redis, JSONSerializer).get_status() == "queued"
            resume(redis)
            await steward.until("job.finished", job=job.id)
            suspend(redis)
            assert (await steward.terminate())[0] == 0


@pytest.mark.long
async def test_more_batches_than_jobs_that_may_wait_all_get_their_turn(place: Place) -> None:
    made = [await place.create() for _ in range(40)]
    async with steward_process(STUB, place.url, place.queue, place.folder):
        notes = await place.notes(len(made))
        assert sorted(note["batch"] for note in notes) == sorted(made)

"""docs/protocol.md says what is so: its examples run, its tables are whole."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from queues import (
    ERROR,
    a_request,
    claim,
    claimed_by,
    die,
    open_worker,
    some_requests,
    succeed,
)
from redis.asyncio import RedisCluster
from redis.exceptions import NoPermissionError
from servers import with_least_user
from workers import STUB, worker_process

from gristmill.producer import Client
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.keys import Keys
from gristmill.shared.operations import Limits
from gristmill.shared.pauses import batch_scope
from gristmill.shared.queue import Queue
from gristmill.shared.records import Record
from gristmill.shared.redis_url import parse
from gristmill.shared.request_json import request_from_json
from gristmill.shared.results import Result
from gristmill.shared.scripts import VERBS, script_source
from gristmill.shared.tenant_data import TenantData
from gristmill.worker.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "protocol.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def result_examples() -> list[str]:
    """Return each result of the JSON block; a result takes several lines there."""
    (examples,) = blocks("json")
    return re.split(r"\n(?=\{)", examples)


INBOX, POLL, SUBMIT = blocks("sh")


def run_in_shell(script: str, url: str, queue: Queue) -> str:
    """Run an example as it stands, against our server (of a cluster the one that holds the queue)."""
    if not shutil.which("redis-cli"):
        pytest.fail("CI must have redis-cli") if os.environ.get("CI") else pytest.skip(
            "no redis-cli"
        )
    redis = queue.redis
    ((_, port), *_) = parse(url).nodes
    if isinstance(redis, RedisCluster):
        port = getattr(redis.get_node_from_key(queue.keys.prefix), "port", port)
    prelude = f'set -eo pipefail; redis-cli() {{ command redis-cli -e -p {port} "$@"; }}\n'
    text = prelude + script.replace("gm:{default}:", queue.keys.prefix)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", text],  # bash of the PATH
        capture_output=True, text=True, timeout=30, check=False, env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


async def test_inbox_and_polling_examples_run(queue: Queue, any_redis_url: str) -> None:
    await queue.stats()  # a cluster's client now knows which node holds the queue
    run_in_shell(INBOX, any_redis_url, queue)
    worker = await open_worker(queue)
    answer = await queue.claim(worker, "n", 1)
    assert len(answer.inbox) == INBOX.count("RPUSH") == 5
    endpoints = []
    for token, element in answer.inbox:
        request = request_from_json(element, max_request_bytes=10**6, default_id=f"inbox-{token}")
        assert await queue.admit(worker, token, request) == "accepted"
        endpoints.append(request.endpoint.rpartition("/v1/")[2])
    assert endpoints == [
        "completions", "chat/completions", "embeddings", "completions", "chat/completions",
    ]  # fmt: skip
    items = await claim(queue, worker)
    assert {"greeting-1", "inbox-1"} <= {item.id for item in items}
    await succeed(queue, worker, items)
    result = Result.parse(run_in_shell(POLL, any_redis_url, queue).encode())
    assert (result.id, result.metadata, result.status) == ("greeting-1", {"row": 17}, "succeeded")
    assert await audit(queue) == []


async def test_submit_example_runs_and_may_be_sent_again(queue: Queue, any_redis_url: str) -> None:
    await queue.stats()
    assert run_in_shell(SUBMIT, any_redis_url, queue).split() == ["OK", "accepted"]
    assert run_in_shell(SUBMIT, any_redis_url, queue).split() == ["OK", "queued"]
    (item,) = await claim(queue, await open_worker(queue))
    assert (item.id, item.record.tenant, item.record.model) == ("my-id", "team-a", "my-model")
    assert (item.record.body, item.record.metadata) == (b'{"prompt":"Hello"}', b'{"row":17}')


def test_result_examples_show_every_status() -> None:
    results = [Result.parse(example.encode()) for example in result_examples()]
    assert {r.status for r in results} == {"succeeded", "failed", "cancelled", "expired"}
    assert [bool(result.failure) for result in results] == [False, True, True, True, True]


async def test_results_have_the_fields_of_the_examples(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 2)
    await succeed(queue, "w", items[:1])
    await queue.cancel([items[1].id])
    first, *_, cancelled, _ = map(orjson.loads, result_examples())
    for item, example in zip(items, (first, cancelled), strict=True):
        stored = orjson.loads(await queue.redis.get(queue.keys.result(item.id)) or b"")
        assert list(stored) == list(example)


def test_record_example_can_be_read() -> None:
    example = next(block for block in blocks("text") if block.startswith("1|"))
    record = Record.parse(example.removesuffix("\n").encode())
    assert (record.tenant, record.batch, record.max_tokens) == ("team-a", "nightly", 256)
    assert (record.metadata, record.body) == (b'{"row":17}', b'{"prompt":"Hello"}')


def test_every_verb_and_every_key_is_described() -> None:
    for verb in VERBS:
        assert f"\n| `{verb}` |" in TEXT
    schema = script_source("stats").split("local prefix")[0]
    keys = re.findall(r"^-- {3}([a-z_]+(?:, [a-z_]+)?(?::<\w+>)*) +[A-Z]{4}", schema, re.MULTILINE)
    assert len(keys) > 20
    for key in keys:
        assert f"\n| `{key.replace(', ', '`, `')}` |" in TEXT, key
    assert Keys("default").prefix in TEXT


def test_limits_are_those_of_the_settings() -> None:
    fields = WorkerSettings.model_fields
    for name in re.findall(r"`GRISTMILL_(\w+)`", TEXT):
        assert name.lower() in fields
    assert Limits().max_depth == 1_000_000


# -- rights -----------------------------------------------------------------------------------------


async def test_user_with_least_rights_runs_every_operation(
    queue: Queue, any_redis_url: str
) -> None:
    redis = connect(with_least_user(any_redis_url))
    user = Queue(redis, queue.keys.queue, Limits(lease_ms=10_000))
    await _use_every_operation(user)
    assert await audit(user) == []
    client: Any = redis
    where = {"target_nodes": client.get_random_node()} if isinstance(redis, RedisCluster) else {}
    for forbidden in ("KEYS *", "FLUSHALL", "CONFIG GET save", "SCRIPT FLUSH", "SET other 1"):
        with pytest.raises(NoPermissionError):
            await client.execute_command(*forbidden.split(), **where)
    await redis.aclose()


async def test_worker_with_least_rights_serves_and_ends(
    queue: Queue, any_redis_url: str, tmp_path: Path
) -> None:
    url = with_least_user(any_redis_url)
    async with (
        worker_process(STUB, url, queue, tmp_path / "log") as worker,
        Client(queue=Queue(connect(url), queue.keys.queue)) as client,
    ):
        result = await client.wait(await client.submit({"prompt": "x"}), 20)
        assert result.is_success
        assert await worker.terminate() == 0
    assert worker.events("beat.failed") == []
    assert await audit(queue) == []


async def _use_every_operation(queue: Queue) -> None:
    await queue.redis.rpush(queue.keys.pauses, b"x")
    assert (await queue.stats()).wrong_types == {"pauses": "list"}
    await queue.redis.delete(queue.keys.wrong_type("pauses"))
    await queue.submit([a_request("dead", max_attempts=1), a_request("later", delay_s=60)])
    worker = await open_worker(queue, "w")
    (dead,) = await claim(queue, worker)
    await queue.nack(worker, dead, 0, ERROR)
    assert await queue.dead_letters.requeue("dead", "again") == "accepted"
    await queue.redis.rpush(queue.keys.inbox, b"{}", b"x")
    (good, _), (bad, _) = (await queue.claim(worker, "n", 1)).inbox
    await queue.admit(worker, good, a_request("admitted"))
    await queue.admit_garbage(worker, bad, "inbox-2", {})
    await queue.submit(some_requests(9, batch="b", reply="me", deadline_s=60))
    items = await claim(queue, worker)
    await succeed(queue, worker, items[:3])
    await queue.cancel([items[3].id, "later", "unknown"])
    await queue.release(worker, items[4:5])
    await queue.crash(worker, {})
    await claim(queue, worker)
    await die(queue, worker)
    await queue.redis.zadd(queue.keys.deadlines, {"x": 1})
    await queue.expire()
    await queue.seal("b", 9)
    await queue.status(["dead", "later"])
    await queue.stats()
    await queue.results(["dead"])
    assert await queue.dead_letters.newest()
    assert await queue.dead_letters.get("inbox-2")
    await queue.dead_letters.purge(["inbox-2"])
    await queue.submit([a_request("purged", tenant="gone")])
    await queue.redis.rpush(queue.keys.inbox, b'{"body":{"prompt":"x"},"tenant":"gone"}')
    for kind in TenantData(queue, "gone").kinds():
        async for chunk in kind.find():
            await kind.remove(chunk)
    await _park_and_resume(queue)
    await queue.redis.blpop([queue.keys.doorbell], timeout=0.01)
    await queue.redis.blpop([queue.keys.finished("me")], timeout=0.01)
    await open_worker(queue, "w3")
    await queue.beat("w3")
    assert await queue.deregister("w3")


async def _park_and_resume(queue: Queue) -> None:
    worker = await open_worker(queue, "w2")
    await queue.pauses.pause(batch_scope("night"), "ann")
    await queue.submit(some_requests(2, batch="night"))
    await claim(queue, worker)
    assert (await queue.stats()).num_parked == {batch_scope("night"): 2}
    await claim(queue, worker)
    await queue.pauses.resume(batch_scope("night"))
    assert len(await succeed(queue, worker, await claim(queue, worker))) > 1

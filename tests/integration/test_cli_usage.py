"""`gristmill usage` shows the ledger as a table and as CSV."""

import asyncio
import csv
import io
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner, Result
from queues import claim, open_worker, outcome, some_requests

from gristmill.producer.commands.usage import usage
from gristmill.shared.operations import Settlement, Use
from gristmill.shared.queue import Queue


@pytest.fixture
async def filled(queue: Queue) -> Queue:
    """A queue in which `a` used two models and `b` one."""
    await queue.submit([*some_requests(2, tenant="a"), *some_requests(1, tenant="b")])
    worker = await open_worker(queue)
    await queue.ack(
        worker,
        [
            Settlement(
                item.id, item.delivery, "succeeded", outcome(item), 1000, 200,
                usage=Use(item.record.tenant, f"m{number}", 30, 1_800_000),
            )
            for number, item in enumerate(await claim(queue, worker))
        ],
    )  # fmt: skip
    return queue


def invoke(queue: Queue, any_redis_url: str, *words: str, **environment: str) -> Result:
    return CliRunner().invoke(
        usage, [*words, "--redis-url", any_redis_url, "--queue", queue.keys.queue], env=environment
    )


def run(queue: Queue, any_redis_url: str, *words: str, **environment: str) -> str:
    done = invoke(queue, any_redis_url, *words, **environment)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_csv_has_sums_and_costs(filled: Queue, any_redis_url: str) -> None:
    text = run(filled, any_redis_url, "--by", "tenant", "--csv", GRISTMILL_DEVICE_HOUR_PRICE="3")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["tenant"] for row in rows] == ["a", "b"]
    assert rows[0] == {
        "tenant": "a", "requests": "2", "prompt_tokens": "2000", "cached_tokens": "60", "output_tokens": "400",
        "device_seconds": "3600.000", "cost": "3.0000", "cost_per_million_tokens": "1250.0000",
    }  # fmt: skip


def test_table_is_aligned_and_has_no_costs_without_a_price(
    filled: Queue, any_redis_url: str
) -> None:
    head, *lines = run(filled, any_redis_url).splitlines()
    assert head.split() == [
        "tenant", "model", "requests", "prompt_tokens", "cached_tokens", "output_tokens", "device_seconds",
    ]  # fmt: skip
    assert sorted(line.split()[0] for line in lines) == ["a", "a", "b"]
    assert len({len(line) for line in (head, *lines)}) == 1


def test_days_and_tenant_choose_the_rows(filled: Queue, any_redis_url: str) -> None:
    today = datetime.now(UTC).date()
    before = str(today - timedelta(days=1))
    only = run(filled, any_redis_url, "--from", before, "--tenant", "b", "--by", "day").splitlines()
    assert [line.split()[0] for line in only[1:]] == [str(today)]


def test_days_that_end_before_they_begin_are_refused(filled: Queue, any_redis_url: str) -> None:
    today = datetime.now(UTC).date()
    day = timedelta(days=1)
    for words, last in ((("--to", str(today - day)), today - day), ((), today)):
        done = invoke(filled, any_redis_url, "--from", str(today + day), *words)
        assert done.exit_code == 2
        assert f"--from {today + day} is after --to {last} (default: today)" in done.stderr


def test_no_requests_are_said(filled: Queue, any_redis_url: str) -> None:
    words = ("--from", "2026-01-01", "--to", "2026-01-02")
    done = invoke(filled, any_redis_url, *words)
    assert (done.stdout, done.stderr) == ("", "no requests from 2026-01-01 to 2026-01-02\n")
    done = invoke(filled, any_redis_url, *words, "--tenant", "nobody", "--csv")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == "no requests of tenant nobody from 2026-01-01 to 2026-01-02\n"


async def test_all_queues_are_summed_up_unless_one_is_named(
    filled: Queue, any_redis_url: str
) -> None:
    second = Queue(filled.redis, f"{filled.keys.queue}-b")
    tenant = second.keys.queue  # other tests leave their queues on the same server
    for queue in (filled, second):
        await queue.submit(some_requests(1, tenant=tenant))
        worker = await open_worker(queue)
        (item,) = await claim(queue, worker)
        used = Use(tenant, "m", 0, 0)
        await queue.ack(
            worker,
            [Settlement(item.id, item.delivery, "succeeded", outcome(item), 5, 1, usage=used)],
        )
    words = ["--redis-url", any_redis_url, "--tenant", tenant, "--by", "tenant", "--csv"]
    for more, number in (([], "2"), (["--queue", tenant], "1")):
        done = await asyncio.to_thread(CliRunner().invoke, usage, [*words, *more])
        (row,) = csv.DictReader(io.StringIO(done.stdout))
        assert row["requests"] == number

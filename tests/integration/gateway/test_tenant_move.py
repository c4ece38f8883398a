"""Tenants that an earlier version kept with their queue move into the directory, once and whole."""

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from gateways import RunningGateway, problem
from queues import a_request

from gristmill.producer.tenant_move import move_all_tenants, move_tenants
from gristmill.producer.tenants import Tenant, Tenants
from gristmill.shared.audit import audit
from gristmill.shared.errors import WrongFormat
from gristmill.shared.keys import Keys
from gristmill.shared.queue import Queue


async def as_before(redis: Any, queue: str, tenant: Tenant, *api_keys: str) -> None:
    """Write a tenant as version 0.1 did."""
    keys = Keys(queue)
    await redis.set(keys.of_kind("tenant", tenant.name), tenant.model_dump_json())
    await redis.sadd(keys.of_kind("tenants", ""), tenant.name)
    for key in api_keys:
        await redis.hset(
            keys.of_kind("api_keys", ""), sha256(key.encode()).hexdigest(), tenant.name
        )


async def left_in(redis: Any, queue: str) -> set[str]:
    kinds = {"tenant", "tenants", "api_keys"}
    keys = Keys(queue)
    found = {keys.parse(key)[0] async for key in redis.scan_iter(match=keys.pattern, count=1000)}
    return found & kinds


ACME = Tenant(name="acme", max_depth=7, webhook_url="https://acme.example/hook")


async def test_tenant_moves_with_its_keys_and_limits(queue: Queue) -> None:
    redis, name, tenants = queue.redis, queue.keys.queue, Tenants(queue.redis)
    await as_before(redis, name, ACME, "gm-1", "gm-2")
    await as_before(redis, name, Tenant(name="b"), "gm-3")
    await queue.submit([a_request("mine", tenant="acme")])
    for _ in range(2):
        await move_tenants(redis, name)
        assert await tenants.list() == [ACME, Tenant(name="b")]
        assert await tenants.by_key("gm-1") == await tenants.by_key("gm-2") == ACME
        assert await left_in(redis, name) == set()
    assert (await queue.status(["mine"]))[0][0] == "queued"
    assert await audit(queue) == []


async def test_moves_at_the_same_time_lose_nothing(queue: Queue) -> None:
    redis, names = queue.redis, [f"{queue.keys.queue}-{n}" for n in range(3)]
    for number, name in enumerate(names):
        for own in range(20):
            await as_before(redis, name, Tenant(name=f"t-{number}-{own}"), f"gm-{number}-{own}")
    await asyncio.gather(*[move_tenants(redis, name) for name in names * 4])
    tenants = Tenants(redis)
    assert len(await tenants.list()) == 60
    assert all([await tenants.by_key(f"gm-{n}-{own}") for n in range(3) for own in range(20)])


async def test_commands_move_those_of_all_queues_once(queue: Queue) -> None:
    redis, names = queue.redis, [f"{queue.keys.queue}-{n}" for n in range(3)]
    for name in names:
        await as_before(redis, name, Tenant(name=name[-20:]), f"gm-{name}")
    await move_all_tenants(redis)
    assert [tenant.name for tenant in await Tenants(redis).list()] == [name[-20:] for name in names]
    await as_before(redis, names[0], ACME)
    await move_all_tenants(redis)
    assert await Tenants(redis).get("acme") is None


async def test_same_record_in_two_queues_keeps_the_keys_of_both(queue: Queue) -> None:
    redis, tenants = queue.redis, Tenants(queue.redis)
    for number in range(2):
        await as_before(redis, f"{queue.keys.queue}-{number}", ACME, f"gm-{number}")
        await move_tenants(redis, f"{queue.keys.queue}-{number}")
    assert await tenants.by_key("gm-0") == await tenants.by_key("gm-1") == ACME


async def test_other_tenant_of_the_name_is_refused_until_somebody_decides(queue: Queue) -> None:
    redis, name, tenants = queue.redis, queue.keys.queue, Tenants(queue.redis)
    await tenants.create(Tenant(name="acme"))
    await as_before(redis, name, ACME, "gm-1")
    await as_before(redis, name, Tenant(name="b"), "gm-2")
    for _ in range(2):
        with pytest.raises(
            WrongFormat, match=rf"queue {name} still has .*: acme\. .*redis-cli DEL '(\S+)'"
        ) as caught:
            await move_tenants(redis, name)
        assert await left_in(redis, name) == {"tenant", "tenants", "api_keys"}
        assert await tenants.get("acme") == Tenant(name="acme")
    await redis.delete(str(caught.value).split("redis-cli DEL '")[1].split("'")[0])
    await move_tenants(redis, name)
    assert await tenants.by_key("gm-1") == Tenant(name="acme")
    assert await tenants.by_key("gm-2") == Tenant(name="b")
    assert await left_in(redis, name) == set()


async def test_key_of_a_deleted_tenant_opens_no_other_of_its_name(queue: Queue) -> None:
    redis, name, tenants = queue.redis, queue.keys.queue, Tenants(queue.redis)
    await tenants.create(ACME)
    keys = Keys(name)
    await redis.hset(keys.of_kind("api_keys", ""), sha256(b"gm-old").hexdigest(), "acme")
    await as_before(redis, name, Tenant(name="b"), "gm-2")
    await move_tenants(redis, name)
    assert await tenants.by_key("gm-old") is None
    assert await tenants.by_key("gm-2") == Tenant(name="b")
    assert await left_in(redis, name) == set()


@pytest.mark.parametrize(
    "record", ['{"name":"carl"', "[]", '{"name":"acme"}', '{"name":"carl","max_live":0}']
)
async def test_damaged_record_is_named_and_stays(queue: Queue, record: str) -> None:
    redis, name, tenants = queue.redis, queue.keys.queue, Tenants(queue.redis)
    await as_before(redis, name, Tenant(name="b"), "gm-2")
    await as_before(redis, name, Tenant(name="carl"), "gm-1")
    await redis.set(Keys(name).of_kind("tenant", "carl"), record)
    with pytest.raises(WrongFormat, match=rf"queue {name} has a damaged record .* carl ") as caught:
        await move_tenants(redis, name)
    assert await tenants.list() == []
    assert await left_in(redis, name) == {"tenant", "tenants", "api_keys"}
    _, key, _, repaired, _ = str(caught.value).split("redis-cli SET ")[1].split("'", 4)
    await redis.set(key, repaired)
    await move_tenants(redis, name)
    assert await tenants.by_key("gm-1") == Tenant(name="carl")


class Killed(BaseException):
    """Stands for `kill -9` between two calls of Redis."""


class DyingRedis:
    """A Redis whose client is killed at its n-th write."""

    def __init__(self, redis: Any, num_writes: int) -> None:
        self._redis, self._left = redis, num_writes

    def __getattr__(self, name: str) -> Any:
        if name in ("set", "sadd", "hset", "unlink"):
            self._left -= 1
            if self._left < 0:
                raise Killed
        return getattr(self._redis, name)


@pytest.mark.parametrize("num_writes", range(8))
async def test_move_killed_at_any_write_is_finished_by_the_next(
    queue: Queue, num_writes: int
) -> None:
    redis, name, tenants = queue.redis, queue.keys.queue, Tenants(queue.redis)
    await as_before(redis, name, ACME, "gm-1")
    await as_before(redis, name, Tenant(name="b"), "gm-2")
    dying: Any = DyingRedis(redis, num_writes)
    if num_writes < 7:
        with pytest.raises(Killed):
            await move_tenants(dying, name)
    else:
        await move_tenants(dying, name)
    await move_tenants(redis, name)
    assert await tenants.list() == [ACME, Tenant(name="b")]
    assert await tenants.by_key("gm-1") == ACME
    assert await tenants.by_key("gm-2") == Tenant(name="b")
    assert await left_in(redis, name) == set()


async def test_gateway_takes_the_keys_of_an_earlier_version(
    gateway: RunningGateway, queue: Queue
) -> None:
    await as_before(queue.redis, queue.keys.queue, ACME, "gm-1")
    async with gateway.caller("gm-1") as api:
        shown = (await api.get("/v1/tenant")).json()
    assert (shown["name"], shown["limits"]["max_depth"]) == ("acme", 7)
    assert await left_in(queue.redis, queue.keys.queue) == set()


async def test_gateway_that_cannot_move_a_tenant_is_not_ready_and_says_why(
    gateway: RunningGateway, queue: Queue
) -> None:
    await Tenants(queue.redis).create(Tenant(name="acme"))
    await as_before(queue.redis, queue.keys.queue, ACME, "gm-1")
    async with gateway.caller("gm-1") as api:
        ready, shown = await api.get("/readyz"), await api.get("/v1/tenant")
    assert (ready.status_code, "redis-cli DEL" in ready.text) == (503, True)
    assert (shown.status_code, problem(shown)["code"]) == (503, "wrong_format")
    assert "the queue or its tenants" in problem(shown)["message"]


async def test_commands_stop_while_a_tenant_cannot_move(
    redis_url: str, tmp_path: Path, queue: Queue
) -> None:
    await Tenants(queue.redis).create(Tenant(name="acme"))
    await as_before(queue.redis, queue.keys.queue, ACME, "gm-1")
    commands = CommandLine(redis_url, "another", tmp_path)
    for words in (("list",), ("show", "acme"), ("create", "b"), ("purge", "acme", "--yes")):
        assert "redis-cli DEL" in commands.run("tenant", *words).err


async def test_command_moves_before_it_lists(redis_url: str, tmp_path: Path, queue: Queue) -> None:
    await as_before(queue.redis, queue.keys.queue, ACME, "gm-1")
    listed = CommandLine(redis_url, "another", tmp_path).run("tenant", "list")
    assert [row["name"] for row in listed.rows] == ["acme"]

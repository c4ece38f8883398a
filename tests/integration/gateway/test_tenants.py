"""Tenants and their keys, as code and as commands."""

import base64
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from gristmill.local.redis_server import running_server
from gristmill.producer.commands.tenant import tenant as command
from gristmill.producer.tenants import Tenant, Tenants, new_webhook_secret, tenant_from
from gristmill.shared.errors import GristmillError, InvalidRequest, NotFound
from gristmill.shared.keys import DirectoryKeys
from gristmill.shared.queue import Queue


@pytest.fixture
def tenants(queue: Queue) -> Tenants:
    return Tenants(queue.redis)


async def test_a_key_leads_to_its_tenant_and_is_stored_nowhere(
    tenants: Tenants, queue: Queue
) -> None:
    acme = Tenant(name="acme", max_depth=7)
    key = await tenants.create(acme)
    assert key.startswith("gm-")
    assert len(key) > 40
    assert await tenants.by_key(key) == acme
    assert await tenants.by_key(key + "x") is None
    assert await tenants.by_key("") is None
    stored: Any = await queue.redis.hgetall(DirectoryKeys.api_keys)
    assert key.encode() not in b"".join([*stored, *stored.values()])
    with pytest.raises(InvalidRequest, match="exists already"):
        await tenants.create(acme)


async def test_keys_are_added_and_revoked(tenants: Tenants) -> None:
    first = await tenants.create(Tenant(name="acme"))
    others = await tenants.create(Tenant(name="other"))
    second = await tenants.add_key("acme")
    assert await tenants.by_key(first) == await tenants.by_key(second)
    assert await tenants.revoke_keys("acme") == 2
    assert await tenants.by_key(first) is await tenants.by_key(second) is None
    assert await tenants.by_key(others)
    with pytest.raises(NotFound):
        await tenants.add_key("nobody")


async def test_a_tenant_that_comes_again_has_no_old_weight(tenants: Tenants, queue: Queue) -> None:
    await tenants.create(Tenant(name="a"))
    other, broken = (Queue(queue.redis, f"{queue.keys.queue}-{n}") for n in range(2))
    for each in (queue, other):
        await each.tenants.set_weights({"a": 3, "b": 2})
    await broken.redis.set(broken.keys.tenant_weights, "of another program")
    await tenants.delete("a")
    for each in (queue, other):
        assert await each.tenants.weights() == {"b": 2}


async def test_a_tenant_is_listed_changed_and_deleted(tenants: Tenants) -> None:
    assert not await tenants.exist()
    key = await tenants.create(Tenant(name="b"))
    await tenants.create(Tenant(name="a"))
    assert [tenant.name for tenant in await tenants.list()] == ["a", "b"]
    await tenants.change(Tenant(name="b", max_batches=3))
    found = await tenants.by_key(key)
    assert found is not None
    assert found.max_batches == 3
    await tenants.delete("b")
    assert await tenants.by_key(key) is None
    assert await tenants.get("b") is None
    for call in (tenants.delete, tenants.require):
        with pytest.raises(NotFound):
            await call("b")
    with pytest.raises(NotFound):
        await tenants.change(Tenant(name="b"))
    await tenants.delete("a")
    assert not await tenants.exist()


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""}, {"name": "a.b"}, {"name": "A"}, {"name": "a" * 65}, {"name": "a\n"}, {"name": "a_b"},
        {"name": "a", "max_depth": 0}, {"name": "a", "requests_per_minute": 0},
        {"name": "a", "webhook_url": "ftp://x"}, {"name": "a", "webhook_url": "http://u:p@h/"},
        {"name": "a", "webhook_secret": "secret"}, {"name": "a", "webhook_secret": "whsec_short"},
        {"name": "a", "webhook_secret": "whsec_" + base64.b64encode(b"x" * 65).decode()},
    ],
)  # fmt: skip
def test_a_tenant_that_breaks_a_rule_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tenant_from(**fields)
    assert "whsec_short" not in str(caught.value)


def test_secrets_are_made_right_and_not_shown() -> None:
    made = Tenant(name="a", webhook_secret=new_webhook_secret())
    assert made.webhook_secret
    assert len(base64.b64decode(made.webhook_secret.removeprefix("whsec_"))) == 32
    assert made.webhook_secret not in repr(made)


# -- commands -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server() as url:
        yield url


def run(url: str, queue: str, *arguments: str) -> Result:
    environment = {"REDIS_URL": url, "GRISTMILL_QUEUE": queue}
    return CliRunner().invoke(command, arguments, env=environment)


def test_commands_make_show_and_end_a_tenant(url: str) -> None:
    made = run(
        url,
        "q",
        "create",
        "acme",
        "--max-depth",
        "9",
        "--max-priority",
        "low",
        "--webhook-url",
        "https://acme.example/hook",
    )
    printed = orjson.loads(made.stdout)
    assert printed["api_key"].startswith("gm-")
    assert printed["webhook_secret"].startswith("whsec_")
    shown = run(url, "q", "show", "acme").stdout
    assert (orjson.loads(shown)["max_depth"], orjson.loads(shown)["max_priority"]) == (9, "low")
    assert "whsec_" not in shown
    assert orjson.loads(shown)["storage_bytes"] == 0
    run(url, "q", "change", "acme", "--max-depth", "10")
    (listed,) = run(url, "q", "list").stdout.splitlines()
    assert (orjson.loads(listed)["max_depth"], orjson.loads(listed)["webhook_url"]) == (
        10, "https://acme.example/hook",
    )  # fmt: skip
    assert orjson.loads(run(url, "q", "key", "acme", "--revoke").stdout)["api_key"].startswith(
        "gm-"
    )
    assert run(url, "q", "delete", "acme").exit_code == 0
    assert run(url, "q", "list").stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [("show", "nobody"), ("delete", "nobody"), ("key", "nobody"), ("change", "nobody"), ("create", "No.Name"),
     ("create", "a", "--max-depth", "0")],
)  # fmt: skip
def test_commands_say_what_is_wrong(url: str, arguments: tuple[str, ...]) -> None:
    ended = run(url, "empty", *arguments)
    assert isinstance(ended.exception, GristmillError)
    assert run(url, "empty", "list").stdout == ""

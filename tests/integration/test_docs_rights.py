"""The Redis users of the documents reach the keys that they need and no others."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from queues import claim, open_worker
from redis import Redis
from redis.exceptions import NoPermissionError
from servers import ask_all, with_user

from gristmill.shared.connection import connect
from gristmill.shared.key_types import TYPES
from gristmill.shared.keys import DirectoryKeys, Keys
from gristmill.shared.queue import Queue
from gristmill.shared.redis_url import parse
from gristmill.shared.request_json import request_from_json

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / name for name in ("operations.md", "protocol.md", "steward.md")]

KEYS = {
    **{kind: f"gm:{{default}}:{kind}" for kind in TYPES},
    **{f"{kind}:x": f"gm:{{default}}:{kind}:x" for kind in TYPES},
    "tenant of the directory": DirectoryKeys().tenant("x"),
    "API keys of the directory": DirectoryKeys.api_keys,
    "inbox of another queue": "gm:{other}:inbox",
    "result of another queue": "gm:{other}:result:x",
    "of RQ": "rq:queue:gristmill-default",
    "of others": "session:1",
}
"""Name of a key in this test -> the key; most kinds take a name or not, and both are tried."""

COMMANDS: dict[str, tuple[Any, ...]] = {
    "GET": (), "MGET": (), "GETRANGE": (0, 9), "STRLEN": (), "TYPE": (), "DUMP": (), "LRANGE": (0, -1), "HGETALL": (),
    "SMEMBERS": (), "ZRANGE": (0, -1), "SET": ("x",), "RPUSH": ("x",), "LPUSH": ("x",), "LPOP": (), "DEL": (),
    "HSET": ("f", "x"), "SADD": ("x",), "ZADD": (1, "x"), "EXPIRE": (1,), "RENAME": ("gm:{default}:new",),
}  # fmt: skip
"""Command -> the words after the key: all that reads, writes, moves or ends a key."""

OF_INBOX = {("RPUSH", "inbox"), ("GET", "result:x"), ("MGET", "result:x")}
ALLOWED: dict[str, set[tuple[str, str]] | None] = {
    "inbox": OF_INBOX,
    "reader": OF_INBOX - {("RPUSH", "inbox")},
    "gristmill": None,
    "steward": None,
}
"""Documented user -> the commands that it may run on which keys; None for all keys of queues."""


def documented() -> Iterator[tuple[str, str]]:
    """Yield name and line of each user in the documents; a user may have several lines."""
    for page in PAGES:
        for line in re.findall(r"^ACL SETUSER .*", page.read_text(), re.MULTILINE):
            if "sentinel|" not in line:  # a user of the sentinels, which have no keys
                yield line.split()[2], line


def make_users(url: str) -> None:
    for _, line in documented():
        ask_all(url, *line.split())


def test_every_documented_user_is_tested() -> None:
    assert {name for name, _ in documented()} == set(ALLOWED)
    assert len(re.findall("ACL SETUSER", "".join(p.read_text() for p in ROOT.glob("docs/**/*.md")))) == 1 + len(
        list(documented())
    )  # fmt: skip


@pytest.mark.parametrize("user", ALLOWED)
def test_documented_user_reaches_its_keys_and_no_others(any_redis_url: str, user: str) -> None:
    make_users(any_redis_url)
    (_, port), *_ = parse(any_redis_url).nodes
    tried = [(command, name) for command in COMMANDS for name in KEYS]
    with Redis(port=port) as operator, operator.pipeline(transaction=False) as pipeline:
        for command, name in tried:
            words = (command, KEYS[name], *COMMANDS[command])
            pipeline.execute_command("ACL", "DRYRUN", user, *words)
        answers = pipeline.execute()
    reached = {attempt for attempt, answer in zip(tried, answers, strict=True) if answer == b"OK"}
    expected = ALLOWED[user]
    if expected is not None:
        assert reached == expected
        return
    foreign = {"of others"} if user == "steward" else {"of others", "of RQ"}
    assert {name for _, name in reached} == set(KEYS) - foreign


async def test_inbox_user_gets_an_answer_and_can_damage_nothing(
    queue: Queue, any_redis_url: str
) -> None:
    for name, line in documented():
        if name == "inbox":
            ask_all(any_redis_url, *line.replace(Keys("default").prefix, queue.keys.prefix).split())
    ask_all(any_redis_url, "ACL", "SETUSER", "inbox", "+command", "+cluster|slots")
    user: Any = connect(with_user(any_redis_url, "inbox", "password"))
    await user.rpush(queue.keys.inbox, json.dumps({"id": "mine", "prompt": "x"}))
    for key in (queue.keys.delayed, queue.keys.scheduling, queue.keys.waiting("normal", "default")):
        with pytest.raises(NoPermissionError):
            await user.rpush(key, "x")
    for key in (DirectoryKeys().tenant("acme"), queue.keys.request("mine"), queue.keys.inbox):
        with pytest.raises(NoPermissionError):
            await user.get(key)
    worker = await open_worker(queue)
    ((token, element),) = (await queue.claim(worker, "n", 1)).inbox
    await queue.admit(worker, token, request_from_json(element, max_request_bytes=10**6))
    assert [item.id for item in await claim(queue, worker)] == ["mine"]
    assert await user.get(queue.keys.result("mine")) is None
    await user.aclose()

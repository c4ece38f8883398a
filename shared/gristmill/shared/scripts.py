"""Build the Lua script of each verb from its own file and the subjects that it includes.

`lua/<verb>.lua` holds a verb, `lua/includes/<subject>.lua` the functions of a subject, which several verbs
share. A script runs whole or not at all, so each verb is atomic. `tests/unit/shared/test_scripts.py` proves
that no verb lacks a function that it calls, and that no verb includes an unused subject.
"""

import re
from functools import cache
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from gristmill.shared.key_types import type_of
from gristmill.shared.keys import LANES, queue_of
from gristmill.shared.queue_format import FORMAT, wrong_format
from gristmill.shared.redis_full import RedisFull
from gristmill.shared.redis_types import AnyRedis

_CORE = ("schema", "types", "counters")
_FINISHING = ("pauses", "batches", "finish")
_WAITING = ("lanes", "tenants", "enqueue")

INCLUDES: dict[str, tuple[str, ...]] = {
    "submit": (*_CORE, "format", "records", "doorbell", *_WAITING, "accept"),
    "admit": (*_CORE, "records", "doorbell", *_WAITING, "dead_letters", "accept"),
    "requeue": (*_CORE, "format", "records", "doorbell", *_WAITING, "dead_letters", "accept"),
    "claim": (
        *_CORE, "records", "deliveries", "doorbell", *_WAITING, *_FINISHING, "dead_letters",
        "inflow", "parking", "claim_parking", "popping", "virtual_time", "taking", "misplaced",
    ),
    "ack": (*_CORE, "records", "deliveries", "tenants", "charges", "parking", *_FINISHING, "usage"),
    "nack": (
        *_CORE, "records", "deliveries", "doorbell", *_WAITING, "charges", *_FINISHING, "dead_letters",
    ),
    "release": (*_CORE, "records", "deliveries", "doorbell", *_WAITING, "charges"),
    "crash": (
        *_CORE, "records", "deliveries", "doorbell", *_WAITING, "charges", *_FINISHING, "dead_letters",
        "suspects",
    ),
    "reap": (
        *_CORE, "records", "deliveries", "doorbell", *_WAITING, "charges", *_FINISHING, "dead_letters",
        "suspects", "leases",
    ),
    "cancel": (
        *_CORE, "format", "records", "deliveries", "tenants", "charges", "parking", *_FINISHING, "finish_anywhere",
    ),
    "expire": (
        *_CORE, "format", "records", "deliveries", "tenants", "charges", "parking", *_FINISHING, "finish_anywhere",
        "dead_letters",
    ),
    "append_events": ("schema", "types", "records", "deliveries"),
    "register": ("schema", "types", "format", "lanes", "leases"),
    "beat": ("schema", "types", "leases"),
    "deregister": ("schema", "types", "leases"),
    "lease_producer": ("schema", "types", "format"),
    "seal": ("schema", "types", "format", "pauses", "batches"),
    "pause": ("schema", "types", "format"),
    "resume": ("schema", "types", "format", "doorbell", "pauses"),
    "purge": ("schema", "counters", "dead_letters"),
    "clear_lanes": ("schema", "types", "lanes"),
    "status": ("schema", "deliveries"),
    "stats": ("schema", "types", "format", "lanes"),
    "read_together": ("schema",),
}  # fmt: skip
"""Verb -> the subjects in front of it, in this order: a subject uses only those before it."""

VERBS = tuple(INCLUDES)

PROTOCOL = f"{FORMAT}.1"
"""Version of keys and verbs that a worker registers with: the format, then what was added since."""

USED_AND_MAX_MEMORY = slice(7, 9)
"""Place of the server's memory in the reply of `stats`."""

FLAGS = {
    "submit": "#!lua", "requeue": "#!lua", "append_events": "#!lua", "read_together": "#!lua flags=no-writes",
}  # fmt: skip
"""First line of a script, by verb. A Redis at its `maxmemory` refuses the verbs that add requests
or events."""

OTHER_FLAGS = "#!lua flags=allow-oom"
"""First line of the other verbs: they end requests, which frees memory, or move existing ones."""


_COUNTING = {"list": "LLEN", "set": "SCARD", "zset": "ZCARD", "hash": "HLEN"}
"""Type -> the command that counts its elements and fails for other types."""

KINDS_OF_LANES = ("flows", "debt")
"""Kinds of which each lane has one key."""


def lua_text(name: str) -> str:
    """Return one Lua file: `claim` or `includes/schema`."""
    return (files("gristmill.shared") / "lua" / f"{name}.lua").read_text()


@cache
def script_source(verb: str) -> str:
    """Return the whole script of a verb: its flags, the subjects that it includes, its own file."""
    included = [lua_text(f"includes/{subject}") for subject in INCLUDES[verb]]
    script = "\n".join((FLAGS.get(verb, OTHER_FLAGS), *included, lua_text(verb)))
    return script.replace("CHECKED_NAMES = {}", f"CHECKED_NAMES = {_names_to_check(script)}")


def _names_to_check(script: str) -> str:
    """Return a Lua table of the keys without a variable name that a script uses, for `includes/types.lua`.

    A check of all such keys would cost a submit of one request three quarters more time.
    """
    names: dict[str, list[str]] = {}
    for found in sorted(set(re.findall(r'prefix \.\. "([a-z_]+:?)"', script))):
        kind, colon, _ = found.partition(":")
        counting = _COUNTING.get(type_of(kind, "") or "")
        if counting and not colon:
            names.setdefault(counting, []).append(found)
        elif kind in KINDS_OF_LANES:
            names.setdefault("ZCARD", []).extend(found + lane for lane in LANES)
    rows = (f"{counting} = {{ {str(row)[1:-1]} }}" for counting, row in names.items())
    return f"{{ {', '.join(rows)} }}"


class Scripts:
    """The scripts of one queue, run by their hash and loaded when the server does not know them.

    Args:
        redis: A client that does not decode.
        prefix: Beginning of the queue's keys.
    """

    def __init__(self, redis: AnyRedis, prefix: str) -> None:
        self._prefix = prefix
        self._scripts = {verb: redis.register_script(script_source(verb)) for verb in VERBS}

    async def run(
        self,
        verb: str,
        *args: str | float | bytes,
        lease_key: str | None = None,
        connection: Redis | None = None,
    ) -> Any:
        """Run a verb and return its reply.

        Args:
            verb: One of VERBS.
            args: ARGV of the script.
            lease_key: Second key, for `submit` under a lease.
            connection: Client to use instead of the queue's own.

        Raises:
            RedisFull: Redis is at its `maxmemory` and the verb adds requests.
            WrongFormat: Another version of Gristmill wrote the queue.
        """
        keys = [self._prefix, lease_key] if lease_key else [self._prefix]
        try:
            return await self._scripts[verb](keys=keys, args=args, client=connection)
        except OutOfMemoryError:
            stats = await self._scripts["stats"](keys=[self._prefix])
            raise RedisFull(*stats[USED_AND_MAX_MEMORY]) from None
        except ResponseError as error:
            code, _, format_of_queue = str(error).partition(" ")
            if code != "FORMAT":
                raise
            queue = queue_of(self._prefix.encode()) or self._prefix
            raise wrong_format(queue, format_of_queue) from None

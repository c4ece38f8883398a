"""`gristmill admin`: the keys that open the gateway's page."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from gristmill.shared.cli import redis_options, say

if TYPE_CHECKING:
    from gristmill.producer.admins import Admins
    from gristmill.shared.redis_types import AnyRedis
    from gristmill.shared.settings import QueueSettings

name_argument = click.argument("name")


@click.group()
def admin() -> None:
    """Manage the keys that open the gateway's page, /ui."""


@admin.command()
@name_argument
@redis_options
def create(name: str, settings: "QueueSettings") -> None:
    """Make an admin key and print it; no command shows it again."""
    from gristmill.producer.commands.session import on_redis, print_json

    key = on_redis(settings, lambda redis: _admins(redis).create(name))
    print_json({"name": name, "admin_key": key})
    say("keep it: the key is not stored; it opens /ui of the gateway")


@admin.command("list")
@redis_options
def list_admins(settings: "QueueSettings") -> None:
    """Print the admin keys by name as JSON, one per line, without the keys."""
    from gristmill.producer.commands.session import on_redis, print_json

    known = on_redis(settings, lambda redis: _admins(redis).list())
    for each in known:
        made_at = datetime.fromtimestamp(each.created_at, UTC).isoformat()
        print_json({"name": each.name, "created_at": made_at})
    if not known:
        say("there are no admin keys; make one: gristmill admin create NAME")


@admin.command()
@name_argument
@redis_options
def revoke(name: str, settings: "QueueSettings") -> int:
    """Delete an admin key and end its sessions. Exits with 1 if there is no such key."""
    from gristmill.producer.commands.session import on_redis

    if on_redis(settings, lambda redis: _admins(redis).revoke(name)):
        say(f"admin key {name} is revoked; its sessions have ended")
        return 0
    say(f"there is no admin key {name!r}; list all: gristmill admin list")
    return 1


def _admins(redis: "AnyRedis") -> "Admins":
    from gristmill.producer.admins import Admins

    return Admins(redis)

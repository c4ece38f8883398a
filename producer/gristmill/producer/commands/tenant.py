"""`gristmill tenant`: the tenants of the gateway, with their API keys, limits and webhooks."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gristmill.producer.commands.batch_options import (
    json_option,
    lost_objects_option,
    storage_options,
)
from gristmill.shared.cli import queue_options, redis_options, say
from gristmill.shared.request import PRIORITIES

if TYPE_CHECKING:
    from gristmill.producer.batches.settings import BatchSettings
    from gristmill.producer.purge import PurgeReport, Tell
    from gristmill.producer.tenants import Tenant
    from gristmill.shared.settings import QueueSettings

name_argument = click.argument("name")
yes_option = click.option(
    "--yes", is_flag=True, help="Delete without asking; needed where there is no terminal."
)


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options for the limits and the webhook of a tenant."""
    for option in (
        click.option(
            "--webhook-url",
            metavar="URL",
            help="URL that gets an event when a batch ends.  [default at creation: none]",
        ),
        click.option(
            "--requests-per-minute",
            type=int,
            help="Most calls of the gateway per minute.  [default at creation: 6000]",
        ),
        click.option(
            "--over-budget",
            type=click.Choice(["wait", "fail"]),
            help="What batches do when a token budget is used up.  [default at creation: wait]",
        ),
        click.option(
            "--tokens-per-month",
            type=int,
            help="Most prompt and output tokens of a calendar month (UTC), in all queues; 0 for any number.  [default at creation: 0]",
        ),
        click.option(
            "--tokens-per-day",
            type=int,
            help="Most prompt and output tokens of a day (UTC), in all queues; 0 for any number.  [default at creation: 0]",
        ),
        click.option(
            "--max-storage-bytes",
            type=int,
            help="Most bytes of files and results of batches, in each queue.  [default at creation: 107374182400]",
        ),
        click.option(
            "--max-priority",
            type=click.Choice(PRIORITIES),
            help="Highest lane that its requests and batches may ask for.  [default at creation: normal]",
        ),
        click.option(
            "--max-live",
            type=int,
            help="Most live requests in all queues, waiting or in flight.  [default at creation: 256]",
        ),
        click.option(
            "--max-batches",
            type=int,
            help="Most batches of each queue that have not ended.  [default at creation: 100]",
        ),
        click.option(
            "--max-bytes",
            type=int,
            help="Most bytes of requests in each queue.  [default at creation: 1073741824]",
        ),
        click.option(
            "--max-depth",
            type=int,
            help="Most requests in each queue, waiting or in flight.  [default at creation: 100000]",
        ),
    ):
        command = option(command)
    return command


@click.group()
def tenant() -> None:
    """Manage the tenants of the gateway: API keys, limits and webhooks."""


@tenant.command()
@name_argument
@limit_options
@redis_options
def create(name: str, settings: "QueueSettings", **fields: Any) -> None:
    """Add a tenant; prints its API key and webhook secret, which no command shows again."""
    from gristmill.producer.commands.session import on_tenants, print_json
    from gristmill.producer.tenants import new_webhook_secret, tenant_from

    made = tenant_from(name=name, webhook_secret=new_webhook_secret(), **fields)
    key = on_tenants(settings, lambda tenants: tenants.create(made))
    print_json({"name": name, "api_key": key, "webhook_secret": made.webhook_secret})
    say("keep both: the key is not stored, and the secret is not shown again")


@tenant.command()
@name_argument
@limit_options
@redis_options
def change(name: str, settings: "QueueSettings", **fields: Any) -> None:
    """Change the limits or the webhook of a tenant; options that are left out stay as they are."""
    from gristmill.producer.commands.session import on_tenants
    from gristmill.producer.tenants import Tenants, tenant_from

    async def changed(tenants: Tenants) -> None:
        known = (await tenants.require(name)).model_dump()
        given = {field: value for field, value in fields.items() if value is not None}
        await tenants.change(tenant_from(**known | given))

    on_tenants(settings, changed)


@tenant.command()
@name_argument
@click.option("--revoke", is_flag=True, help="Revoke the existing keys of the tenant first.")
@redis_options
def key(name: str, revoke: bool, settings: "QueueSettings") -> None:
    """Add an API key to a tenant and print the key."""
    from gristmill.producer.commands.session import on_tenants, print_json
    from gristmill.producer.tenants import Tenants

    async def made(tenants: Tenants) -> str:
        await tenants.require(name)
        if revoke:
            await tenants.revoke_keys(name)
        return await tenants.add_key(name)

    print_json({"name": name, "api_key": on_tenants(settings, made)})


@tenant.command()
@name_argument
@queue_options
def show(name: str, settings: "QueueSettings") -> None:
    """Print a tenant as JSON, without its secret, and the bytes that the queue's storage keeps for it."""
    from gristmill.producer.batches.storage_use import StorageUse
    from gristmill.producer.budgets import Budgets
    from gristmill.producer.commands.session import on_tenants, print_json
    from gristmill.producer.tenants import Tenants
    from gristmill.shared.queue import Queue

    async def found(tenants: Tenants) -> dict[str, Any]:
        shown = _shown(await tenants.require(name))
        queue = Queue(tenants.redis, settings.queue)
        use = await Budgets(queue).use_of(name)
        return shown | {
            "storage_bytes": await StorageUse(queue).num_bytes(name),
            "tokens_today": use.tokens_today,
            "tokens_this_month": use.tokens_this_month,
        }

    print_json(on_tenants(settings, found))


@tenant.command("list")
@redis_options
def list_all(settings: "QueueSettings") -> None:
    """Print all tenants, one JSON object a line."""
    from gristmill.producer.commands.session import on_tenants, print_json

    known = on_tenants(settings, lambda tenants: tenants.list())
    for each in known:
        print_json(_shown(each))
    if not known:
        say("there are no tenants; make one: gristmill tenant create NAME")


@tenant.command()
@name_argument
@redis_options
def delete(name: str, settings: "QueueSettings") -> None:
    """Delete a tenant, its keys and its weights; its requests and batches run on."""
    from gristmill.producer.commands.session import on_tenants

    on_tenants(settings, lambda tenants: tenants.delete(name))
    say(
        f"tenant {name} is gone; its files and batches stay until they expire; to delete them:"
        f" gristmill tenant purge {name}"
    )


@tenant.command()
@name_argument
@yes_option
@lost_objects_option
@json_option
@click.option(
    "--queue",
    "only_queue",
    metavar="NAME",
    help="The one queue to look in, if other queues have other storages.  [default: all queues]",
)
@storage_options
def purge(
    *,
    name: str,
    yes: bool,
    may_lack_objects: bool,
    as_json: bool,
    only_queue: str | None,
    settings: "BatchSettings",
) -> int:
    """Delete all data of a tenant in all queues, and the tenant.

    Deletes requests, results, dead letters, inbox elements, files, batches and API keys. Requests in flight are
    cancelled. Then scans all keys and stored files for what is left, and exits with 1 if anything is.

    Needs the storage that has the tenant's files. Deletes nothing if it lacks one. Exits with 1 if nobody knows such a
    tenant. May be repeated after an interruption. Takes 6 s or more if the tenant is known.
    """
    from gristmill.producer.commands.purge_session import (
        confirm,
        in_counts,
        on_tenant_stores,
        run_purge,
    )
    from gristmill.producer.known_names import unknown_tenant
    from gristmill.producer.tenant_purge import count_of_tenant, purge_tenant
    from gristmill.shared.names import check_tenant

    check_tenant(name)
    subject = f"tenant {name}" + (f" in queue {only_queue}" if only_queue else "")
    on_stores = partial(on_tenant_stores, settings, only_queue)
    if not (found := on_stores(partial(count_of_tenant, tenant=name))):
        say(on_stores(partial(unknown_tenant, name=name)))
        return 1
    confirm(f"This deletes all data of {subject} for good: {in_counts(found)}.", name, yes=yes)

    def purge_it(tell: "Tell") -> "PurgeReport":
        return on_stores(
            partial(purge_tenant, tenant=name, tell=tell, may_lack_objects=may_lack_objects)
        )

    return run_purge(subject, purge_it, as_json=as_json)


def _shown(each: "Tenant") -> dict[str, Any]:
    return each.model_dump(exclude={"webhook_secret"})

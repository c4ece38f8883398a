"""The options that several commands have which work on batches, tenants and queues."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gristmill.shared.cli import queue_option, redis_options

if TYPE_CHECKING:
    from gristmill.shared.settings import QueueSettings

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object per line."
)
lost_objects_option = click.option(
    "--lost-objects",
    "may_lack_objects",
    is_flag=True,
    help="Delete although the storage lacks objects that were lost.",
)
lenient_option = click.option(
    "--lenient",
    is_flag=True,
    help="Turn bad lines into error rows and run the others, instead of refusing the file.",
)
unknown_fields_option = click.option(
    "--unknown-fields",
    type=click.Choice(["report", "refuse"]),
    default="report",
    show_default=True,
    help="Report lines with body fields that the engine ignores, or treat them as bad lines.",
)
id_argument = click.argument("batch_id", metavar="BATCH")


def checked_tenant(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    """Refuse a name that no tenant can have before anything else happens."""
    if name is not None:
        from gristmill.shared.names import check_tenant

        check_tenant(name)
    return name


tenant_option = click.option(
    "--tenant",
    metavar="NAME",
    callback=checked_tenant,
    help="Tenant whose batches this command may use.  [default: all tenants]",
)


def batch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--storage-url`, `--redis-url` and `--queue` to a command; it gets a `BatchSettings`."""
    return queue_option(storage_options(command))


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `batch_options` to a command that creates a batch; it gets a `ModelSettings`."""
    return queue_option(storage_options(command, has_models=True))


def storage_options(command: Callable[..., Any], *, has_models: bool = False) -> Callable[..., Any]:
    """Add `--storage-url` and `--redis-url` to a command.

    Args:
        command: The command; it gets a `BatchSettings`.
        has_models: True gives it a `ModelSettings`.
    """

    @redis_options
    @click.option(
        "--storage-url",
        metavar="URL",
        help="Storage of the files: a folder, or a URL that fsspec knows."
        "  [env: GRISTMILL_STORAGE_URL; default: ~/.local/share/gristmill]",
    )
    @functools.wraps(command)
    def with_settings(
        *args: Any, settings: "QueueSettings", storage_url: str | None, **options: Any
    ) -> Any:
        from gristmill.producer.batches.model_settings import ModelSettings
        from gristmill.producer.batches.settings import BatchSettings
        from gristmill.shared.settings import read_settings

        given = {"redis_url": settings.redis_url, "queue": settings.queue}
        model = ModelSettings if has_models else BatchSettings
        of_batches = read_settings(model, storage_url=storage_url, **given)
        return command(*args, settings=of_batches, **options)

    return with_settings

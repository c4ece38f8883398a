"""`gristmill top`: the live view of a queue on a terminal."""

from typing import TYPE_CHECKING

import click

from gristmill.shared.cli import queue_options

if TYPE_CHECKING:
    from gristmill.shared.settings import QueueSettings


@click.command()
@queue_options
def top(settings: "QueueSettings") -> None:
    """Watch a queue live: its work, workers, batches, dead letters and tenants.

    Keys 1 to 5 choose what is shown, and q quits. It changes nothing. It needs a terminal; for a script use
    `gristmill queue stats --json`.
    """
    from gristmill.producer.top.screen import run_top

    run_top(settings)

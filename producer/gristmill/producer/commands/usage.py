"""`gristmill usage`: what each tenant used, as a table or as CSV."""

import csv
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from gristmill.shared.cli import redis_options, say

if TYPE_CHECKING:
    from datetime import date

    from gristmill.producer.usage_report import By, UsageLine
    from gristmill.shared.queue import Queue
    from gristmill.shared.settings import QueueSettings
    from gristmill.shared.usage_ledger import LedgerRow

_DAY = click.DateTime(["%Y-%m-%d"])
_NUMBERS = ("requests", "prompt_tokens", "cached_tokens", "output_tokens", "device_seconds")
_COSTS = ("cost", "cost_per_million_tokens")


@click.command("usage")
@click.option(
    "--from",
    "first",
    type=_DAY,
    help="First UTC day, as 2026-11-01.  [default: the first of the month of --to]",
)
@click.option("--to", "last", type=_DAY, help="Last UTC day.  [default: today]")
@click.option("--tenant", help="Only tenant to show.  [default: all]")
@click.option(
    "--by",
    type=click.Choice(["day", "tenant", "model"]),
    multiple=True,
    default=("tenant", "model"),
    show_default=True,
    help="What a line stands for; may be repeated.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--queue", "only_queue", metavar="NAME", help="The one queue to show.  [default: all queues]"
)
@redis_options
def usage(
    *,
    first: "datetime | None",
    last: "datetime | None",
    tenant: str | None,
    by: "Sequence[By]",
    as_csv: bool,
    only_queue: str | None,
    settings: "QueueSettings",
) -> None:
    """Show requests, tokens and device time of each tenant and model in all queues.

    GRISTMILL_DEVICE_HOUR_PRICE adds what they cost.
    """
    from gristmill.producer.commands.session import on_queues
    from gristmill.producer.usage_report import usage_lines
    from gristmill.shared.usage_ledger import Ledger

    async def read(queues: "Sequence[Queue]") -> "tuple[date, date, list[LedgerRow]]":
        ledgers = [Ledger(queue) for queue in queues]
        today = await ledgers[0].today() if ledgers else datetime.now(UTC).date()
        until = last.date() if last else today
        since = first.date() if first else until.replace(day=1)
        _check_days(since, until)
        rows = [row for each in ledgers for row in await each.rows(since, until, tenant)]
        return since, until, rows

    since, until, rows = on_queues(settings, only_queue, read)
    price = settings.device_hour_price
    lines = usage_lines(rows, by, price)
    if not lines:
        say(f"no requests {f'of tenant {tenant} ' if tenant else ''}from {since} to {until}")
    heads = [*by, *_NUMBERS, *(_COSTS if price else ())]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows(_cells(lines, has_price=bool(price)))
    elif lines:
        _print_table(heads, len(by), list(_cells(lines, has_price=bool(price))))


def _check_days(first: "date", last: "date") -> None:
    if first > last:
        raise click.UsageError(
            f"--from {first} is after --to {last} (default: today); choose an earlier day"
        )


def _cells(lines: "Sequence[UsageLine]", *, has_price: bool) -> Iterator[list[Any]]:
    for line in lines:
        *counts, device_ms = line.usage
        costs = (f"{line.cost:.4f}", _or_empty(line.cost_per_million_tokens)) if has_price else ()
        yield [*line.names, *counts, f"{device_ms / 1000:.3f}", *costs]


def _or_empty(cost: float | None) -> str:
    return "" if cost is None else f"{cost:.4f}"


def _print_table(heads: Sequence[str], num_names: int, rows: Sequence[Sequence[Any]]) -> None:
    """Print an aligned table; numbers have a comma after each third digit."""
    texts = [heads, *([f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows)]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        cells = (
            cell.ljust(width) if number < num_names else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        click.echo("  ".join(cells).rstrip())

"""`gristmill status`, `result` and `cancel`: requests by their ids."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gristmill.shared.cli import OTHER_ERROR, FiniteRange, queue_options, say
from gristmill.shared.errors import ResultExpired

if TYPE_CHECKING:
    from gristmill.producer.client import Client
    from gristmill.shared.results import Result
    from gristmill.shared.settings import QueueSettings

ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)
json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")


@click.command()
@ids_argument
@json_option
@queue_options
def status(ids: tuple[str, ...], as_json: bool, settings: "QueueSettings") -> int:
    """Say where requests are.

    One of queued, delayed, running, done or unknown; the worker that runs it beside it. A line of a file
    has the id that its row shows as response.request_id. Leaves with 1 if the queue does not know an id.
    """
    from gristmill.producer.commands.session import on_client, print_json

    states = on_client(settings, lambda client: client.status(ids))
    for request_id, (state, worker) in zip(ids, states, strict=True):
        if as_json:
            print_json({"id": request_id, "state": state, "worker": worker or None})
        else:
            click.echo(f"{request_id}  {state}" + (f"  on {worker}" if worker else ""))
    return _told_unknown([state for state, _ in states], settings)


def _told_unknown(states: Sequence[str], settings: "QueueSettings") -> int:
    """Say how many ids the queue does not know; returns the exit code."""
    num_unknown = states.count("unknown")
    if not num_unknown:
        return 0
    say(
        f"queue {settings.queue} does not know {num_unknown:,} of {len(states):,} ids: they were never submitted to it,"
        " or the TTL of their results has ended; another queue: --queue NAME"
    )
    return 1


@click.command()
@ids_argument
@click.option("--wait", is_flag=True, help="Wait until each is finished.")
@click.option("--timeout-s", type=FiniteRange(min=0), help="Longest wait for each.")
@queue_options
def result(
    ids: tuple[str, ...], wait: bool, timeout_s: float | None, settings: "QueueSettings"
) -> int:
    """Print results as JSON lines.

    Leaves with 0 if all succeeded, 1 if one did not or is not finished, 4 if one is unknown.
    """
    if timeout_s is not None and not wait:
        raise click.UsageError("--timeout-s needs --wait")
    from gristmill.producer.commands.session import on_client

    return on_client(
        settings, lambda client: _print_results(client, ids, wait, timeout_s), is_quiet=False
    )


async def _print_results(
    client: "Client", ids: tuple[str, ...], wait: bool, timeout_s: float | None
) -> int:
    """Print each; returns the worst exit code."""
    worst = 0
    for request_id in ids:
        try:
            found = await _result(client, request_id, wait, timeout_s)
        except ResultExpired as error:
            say(f"gristmill: {error}")
            worst = OTHER_ERROR
        else:
            worst = max(worst, _print_result(found))
    return worst


def _print_result(found: "Result | None") -> int:
    from gristmill.producer.commands.session import print_json

    if found is None:
        return 1
    print_json(found)
    return 0 if found.is_success else 1


async def _result(
    client: "Client", request_id: str, wait: bool, timeout_s: float | None
) -> "Result | None":
    """Return a result, or None after saying that it is not there yet."""
    if not wait:
        found = await client.result(request_id)
        if found is None:
            say(f"{request_id} is not finished; wait for it with --wait")
        return found
    try:
        return await client.wait(request_id, timeout_s)
    except TimeoutError as error:
        say(str(error))
        return None


@click.command()
@ids_argument
@json_option
@queue_options
def cancel(ids: tuple[str, ...], as_json: bool, settings: "QueueSettings") -> int:
    """Cancel requests, waiting or running.

    No worker has to be alive. Says of each what it was: queued or running (it is cancelled now),
    done or unknown. Leaves with 1 if the queue does not know an id.
    """
    from gristmill.producer.commands.session import on_client, print_json

    codes = on_client(settings, lambda client: client.cancel(ids))
    for request_id, code in zip(ids, codes, strict=True):
        is_cancelled = code in ("queued", "running")
        if as_json:
            print_json({"id": request_id, "was": code, "is_cancelled": is_cancelled})
        else:
            click.echo(f"{request_id}  " + (f"cancelled, was {code}" if is_cancelled else code))
    return _told_unknown(codes, settings)

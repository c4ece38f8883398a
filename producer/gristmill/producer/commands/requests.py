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

ROW_ID_PREFIX = "batch_req_"
"""First characters of a row's id; a copy of `rows.ID_PREFIX`, whose package is slow to import."""

ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object per line."
)


@click.command()
@ids_argument
@json_option
@queue_options
def status(ids: tuple[str, ...], as_json: bool, settings: "QueueSettings") -> int:
    """Show the state of requests.

    A state is queued, delayed, running, done or unknown. A running request also has the name of its
    worker. The request of a file's line n has the id RUN-n, or BATCH-n. Exits with 1 if the queue
    does not know an id.
    """
    from gristmill.producer.commands.session import on_client, print_json

    states = on_client(settings, lambda client: client.status(ids))
    for request_id, (state, worker) in zip(ids, states, strict=True):
        if as_json:
            print_json({"id": request_id, "state": state, "worker": worker or None})
        else:
            click.echo(f"{request_id}  {state}" + (f"  on {worker}" if worker else ""))
    return _told_unknown(ids, [state for state, _ in states], settings)


def _told_unknown(ids: Sequence[str], states: Sequence[str], settings: "QueueSettings") -> int:
    """Report how many ids the queue does not know, and return the exit code."""
    num_unknown = states.count("unknown")
    if not num_unknown:
        return 0
    say(
        f"queue {settings.queue} does not know {num_unknown:,} of {len(states):,} ids: they were never submitted to it,"
        " the TTL of their results has ended, or they were deleted: by a purge, or with a batch whose rows are written;"
        " name another queue: --queue NAME"
    )
    _tell_row_ids(ids)
    return 1


def _tell_row_ids(ids: Sequence[str]) -> None:
    """Report how to make the id of a request from the id of a row, if an id is one."""
    row_ids = [name for name in ids if name.startswith(ROW_ID_PREFIX)]
    if row_ids:
        say(
            f"{row_ids[0]} is the id of a row; the request's id is {row_ids[0].removeprefix(ROW_ID_PREFIX)},"
            f" without {ROW_ID_PREFIX}"
        )


@click.command()
@ids_argument
@click.option("--wait", is_flag=True, help="Wait until each request is finished.")
@click.option(
    "--timeout-s",
    type=FiniteRange(min=0),
    help="Most seconds to wait for each request; needs --wait.  [default: no limit]",
)
@queue_options
def result(
    ids: tuple[str, ...], wait: bool, timeout_s: float | None, settings: "QueueSettings"
) -> int:
    """Print results as JSON lines.

    Exits with 0 if all requests succeeded, 1 if one did not succeed or is not finished, 4 if the
    queue does not know an id.
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
    """Print each result, and return the highest exit code."""
    worst = 0
    for request_id in ids:
        try:
            found = await _result(client, request_id, wait, timeout_s)
        except ResultExpired as error:
            say(f"gristmill: {error}; name another queue: --queue NAME")
            _tell_row_ids([request_id])
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
    """Return a result; if the request is not finished, report that and return None."""
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
    """Cancel waiting and running requests; prints the previous state of each.

    A request that was queued or running is cancelled now. One that is done does not change. No
    worker has to be alive. Exits with 1 if the queue does not know an id.
    """
    from gristmill.producer.commands.session import on_client, print_json

    codes = on_client(settings, lambda client: client.cancel(ids))
    for request_id, code in zip(ids, codes, strict=True):
        is_cancelled = code in ("queued", "running")
        if as_json:
            print_json({"id": request_id, "was": code, "is_cancelled": is_cancelled})
        else:
            click.echo(f"{request_id}  " + (f"cancelled, was {code}" if is_cancelled else code))
    return _told_unknown(ids, codes, settings)

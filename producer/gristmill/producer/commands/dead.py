"""`gristmill dead`: show dead letters, submit them again, or delete them."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import orjson

from gristmill.shared.cli import queue_options, say
from gristmill.shared.errors import NotFound

if TYPE_CHECKING:
    from gristmill.shared.dead_letters import DeadLetter
    from gristmill.shared.queue import Queue
    from gristmill.shared.settings import QueueSettings

LETTERS_A_CALL = 20
"""Dead letters that one call reads; each contains its request, which may have megabytes."""


@click.group()
def dead() -> None:
    """Show, requeue or purge dead letters.

    A dead letter is a request or an inbox element that could not be served.
    """


ids_argument = click.argument("ids", metavar="ID...", nargs=-1)
all_option = click.option(
    "--all", "all_letters", is_flag=True, help="Take all dead letters of the queue."
)


@dead.command("list")
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Most dead letters to list.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object per line, with the evidence."
)
@queue_options
def list_letters(count: int, as_json: bool, settings: "QueueSettings") -> None:
    """List dead letters, newest first, each with the beginning of its evidence."""
    from gristmill.producer.commands.session import on_queue, print_json

    letters = on_queue(settings, lambda queue: _newest(queue, count))
    if as_json:
        for letter in letters:
            print_json(_facts(letter))
        return
    for letter in letters:
        click.echo(
            f"{letter.id}  {letter.reason}  {_moment(letter.at_ms)}  attempt {letter.attempt}, engine deaths"
            f" {letter.crashes}{_cause(letter)}"
        )
    if not letters:
        say("no dead letters")


async def _newest(queue: "Queue", count: int) -> "list[DeadLetter]":
    letters: list[DeadLetter] = []
    while len(letters) < count:
        page = await queue.dead_letters.newest(
            len(letters), min(LETTERS_A_CALL, count - len(letters))
        )
        if not page:
            break
        letters += page
    return letters


def _facts(letter: "DeadLetter") -> dict[str, Any]:
    return {
        "id": letter.id,
        "reason": letter.reason,
        "at": _moment(letter.at_ms),
        "attempt": letter.attempt,
        "crashes": letter.crashes,
        "evidence": letter.evidence,
    }


def _cause(letter: "DeadLetter") -> str:
    return f"  {letter.cause}" if letter.cause else ""


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


@dead.command()
@click.argument("dead_id", metavar="ID")
@queue_options
def show(dead_id: str, settings: "QueueSettings") -> None:
    """Show one dead letter: its facts and evidence, then its body.

    An inbox element that is no request is shown as it arrived.
    """
    from gristmill.producer.commands.session import on_queue

    letter = on_queue(settings, lambda queue: queue.dead_letters.get(dead_id))
    if letter is None:
        raise NotFound(
            f"no dead letter {dead_id!r}; see: gristmill dead list --queue {settings.queue}"
        )
    click.echo(orjson.dumps(_facts(letter), option=orjson.OPT_INDENT_2))
    click.echo(_body_of(letter.record))


def _body_of(record: bytes) -> bytes:
    """Return the body of a request, or all bytes of an element that is no request."""
    from gristmill.shared.records import Record

    try:
        return Record.parse(record).body
    except (ValueError, IndexError):
        return record


@dead.command()
@ids_argument
@all_option
@queue_options
def requeue(ids: tuple[str, ...], all_letters: bool, settings: "QueueSettings") -> int:
    """Submit dead letters again as new requests; prints the old and the new id of each.

    The old result stays, and the new request names the old id as its origin. The new request has no
    deadline and belongs to no batch. Exits with 1 if a dead letter could not be requeued.
    """
    from gristmill.producer.commands.session import on_queue

    _check_selection(ids, all_letters)
    return on_queue(settings, lambda queue: _requeue(queue, ids))


async def _requeue(queue: "Queue", ids: tuple[str, ...]) -> int:
    num_refused = 0
    for dead_id in ids or [dead_id async for dead_id in _all_ids(queue)]:
        fresh = await queue.dead_letters.owned_id(dead_id)
        if await queue.dead_letters.requeue(dead_id, fresh) == "missing":
            num_refused += 1
            say(f"{dead_id}: {await _refusal(queue, dead_id)}")
        else:
            click.echo(f"{dead_id}  {fresh}")
    return 1 if num_refused else 0


async def _refusal(queue: "Queue", dead_id: str) -> str:
    """Return why a dead letter could not be requeued."""
    on_queue = f"--queue {queue.keys.queue}"
    if await queue.dead_letters.get(dead_id) is None:
        return f"no such dead letter; see: gristmill dead list {on_queue}"
    return (
        f"it is no request, so it cannot be requeued; see: gristmill dead show {dead_id} {on_queue}"
    )


@dead.command()
@ids_argument
@all_option
@click.option("--yes", is_flag=True, help="Delete without asking.")
@queue_options
def purge(ids: tuple[str, ...], all_letters: bool, yes: bool, settings: "QueueSettings") -> int:
    """Delete dead letters with the bodies of their requests.

    The results of the requests stay until their TTL ends. Exits with 1 if an ID has no dead letter.
    """
    from gristmill.producer.commands.session import on_queue

    _check_selection(ids, all_letters)
    what = "all dead letters" if all_letters else f"{len(ids)} dead letters"
    if not yes:
        click.confirm(f"Delete {what} of queue {settings.queue} for good?", abort=True, err=True)
    num_deleted = on_queue(settings, lambda queue: _purge(queue, ids))
    say(f"deleted {num_deleted:,}")
    if num_missing := len(set(ids)) - num_deleted if ids else 0:
        say(
            f"{num_missing:,} of the ids have no dead letter; see: gristmill dead list --queue {settings.queue}"
        )
    return 1 if num_missing else 0


async def _purge(queue: "Queue", ids: tuple[str, ...]) -> int:
    from gristmill.shared.chunking import chunks
    from gristmill.shared.operations import IDS_A_CALL

    chosen = ids or [dead_id async for dead_id in _all_ids(queue)]
    return sum([await queue.dead_letters.purge(chunk) for chunk in chunks(chosen, IDS_A_CALL)])


def _check_selection(ids: tuple[str, ...], all_letters: bool) -> None:
    if ids and all_letters:
        raise click.UsageError("name dead letters by ID, or take all with --all, not both")
    if not ids and not all_letters:
        raise click.UsageError("name dead letters by ID, or take all with --all")


async def _all_ids(queue: "Queue") -> AsyncIterator[str]:
    start = 0
    while page := await queue.dead_letters.newest(start, LETTERS_A_CALL):
        for letter in page:
            yield letter.id
        start += len(page)

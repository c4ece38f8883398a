"""`gristmill queue`: the state of a queue, its tenants' weights, an audit of its invariants, its deletion."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from gristmill.producer.commands.batch_options import batch_options, lost_objects_option
from gristmill.shared.cli import queue_options, say

if TYPE_CHECKING:
    from gristmill.producer.batches.settings import BatchSettings
    from gristmill.producer.overview import QueueView
    from gristmill.producer.purge import PurgeReport, Tell
    from gristmill.shared.queue import Queue
    from gristmill.shared.settings import QueueSettings

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object per line."
)


class OneQueueCommand(click.Command):
    """A command on the queue of `--queue`; a name among the arguments is an error that says so."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest:
            raise click.UsageError(f"name the queue as an option: --queue {rest[0]}", ctx)
        return rest


@click.group("queue")
def queue_group() -> None:
    """Show the state of a queue, set the weights of its tenants, audit or purge it."""


@queue_group.command(cls=OneQueueCommand)
@json_option
@queue_options
def stats(as_json: bool, settings: "QueueSettings") -> None:
    """Show depth, lanes, workers and counters of the queue, all at one moment."""
    from gristmill.producer.commands.queue_view import queue_facts, queue_lines
    from gristmill.producer.commands.session import on_queue, print_json
    from gristmill.producer.known_names import is_unused, unknown_queue
    from gristmill.producer.overview import read_queue

    async def read(queue: "Queue") -> "tuple[QueueView, str]":
        hint = await unknown_queue(queue) if await is_unused(queue) else ""
        return await read_queue(queue), hint

    view, hint = on_queue(settings, read)
    if hint:
        say(hint)
    if as_json:
        print_json(queue_facts(view))
    else:
        for line in queue_lines(view):
            click.echo(line)


@queue_group.command(cls=OneQueueCommand)
@click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="Reason that `queue stats` shows, up to 200 characters.",
)
@queue_options
def pause(reason: str, settings: "QueueSettings") -> None:
    """Let no worker claim from the queue.

    Requests that run end, and submits are accepted. A pause survives restarts.
    """
    from gristmill.producer.commands.pause_words import told_of_pause
    from gristmill.producer.commands.session import on_queue
    from gristmill.shared.pauses import WHOLE_QUEUE, this_user

    async def paused(queue: "Queue") -> str:
        is_new = await queue.pauses.pause(WHOLE_QUEUE, this_user(), reason)
        return await told_of_pause(queue, WHOLE_QUEUE, reason, is_new=is_new)

    say(on_queue(settings, paused))


@queue_group.command(cls=OneQueueCommand)
@queue_options
def resume(settings: "QueueSettings") -> None:
    """Let workers claim from a paused queue again."""
    from gristmill.producer.commands.session import on_queue
    from gristmill.shared.pauses import WHOLE_QUEUE

    was_paused = on_queue(settings, lambda queue: queue.pauses.resume(WHOLE_QUEUE))
    say(f"queue {settings.queue} {'is resumed' if was_paused else 'was not paused'}")


@queue_group.command()
@click.argument("given", metavar="[TENANT=WEIGHT]...", nargs=-1)
@json_option
@queue_options
def weights(given: tuple[str, ...], as_json: bool, settings: "QueueSettings") -> None:
    """Show the weights of tenants under fair scheduling; with arguments, set them first.

    A tenant of weight 3 gets three times the tokens of a tenant of weight 1. A weight is from 0.001
    to 1000. Every tenant that is not listed has weight 1, and setting 1 removes a tenant from the
    list. New weights apply to later claims.
    """
    from gristmill.producer.commands.session import on_queue, print_json

    fresh = dict(map(_weight, given))

    async def set_and_read(queue: "Queue") -> dict[str, float]:
        await queue.tenants.set_weights(fresh)
        return await queue.tenants.weights()

    known = on_queue(settings, set_and_read)
    if as_json:
        print_json(known)
        return
    for tenant, weight in sorted(known.items()):
        click.echo(f"{tenant}  {weight:g}")
    if not known:
        say("no weights: every tenant has the same share")


def _weight(text: str) -> tuple[str, float]:
    tenant, _, weight = text.rpartition("=")
    try:
        return tenant, float(weight)
    except ValueError:
        raise click.UsageError(f"{text!r} is not TENANT=WEIGHT, such as team-a=3") from None


@queue_group.command(cls=OneQueueCommand)
@json_option
@queue_options
def audit(as_json: bool, settings: "QueueSettings") -> int:
    """Check that each request is in exactly one place, and that the counters are true.

    The audit only reads, so producers and workers may run at the same time. Exits with 1 if it
    finds something harmful.
    """
    from gristmill.producer.commands.session import on_queue, print_json
    from gristmill.shared.audit import audit as audit_of

    findings = on_queue(settings, audit_of)
    for finding in findings:
        if as_json:
            print_json(asdict(finding))
        else:
            note = "  (harmless)" if finding.is_harmless else ""
            click.echo(f"{finding.kind}  {finding.subject}  {finding.detail}{note}")
    num_harmful = sum(not finding.is_harmless for finding in findings)
    say(f"queue {settings.queue}: {len(findings)} findings, {num_harmful} of them harmful")
    return 1 if num_harmful else 0


@queue_group.command(cls=OneQueueCommand)
@click.option(
    "--yes", is_flag=True, help="Delete without asking; needed where there is no terminal."
)
@click.option("--force", is_flag=True, help="Delete although workers or stewards hold leases.")
@lost_objects_option
@json_option
@batch_options
def purge(
    *, yes: bool, force: bool, may_lack_objects: bool, as_json: bool, settings: "BatchSettings"
) -> int:
    """Delete every key of a queue, and the stored files of its batches.

    Tenants stay. Refuses while workers or stewards hold leases. Then scans all keys and stored files for what is left,
    and exits with 1 if anything is. May be repeated after an interruption.

    Needs the storage that has the queue's files. Deletes nothing if it lacks one. Exits with 1 if there is no such
    queue.
    """
    from gristmill.producer.commands.purge_session import confirm, in_counts, run_purge
    from gristmill.producer.commands.session import on_queue
    from gristmill.producer.commands.store_session import on_store
    from gristmill.producer.known_names import unknown_queue
    from gristmill.producer.purge import count_of_queue, purge_queue
    from gristmill.producer.purge_checks import check_unheld

    if not (found := on_queue(settings, count_of_queue, any_format=True)):
        say(on_queue(settings, unknown_queue) + "; nothing was deleted")
        return 1
    if not force:
        on_store(settings, check_unheld, any_format=True)
    subject = f"queue {settings.queue}"
    warning = (
        f"This deletes everything in {subject} for good: {in_counts(found)}. Stop its gateways first, or they write"
        " again."
    )
    confirm(warning, settings.queue, yes=yes)

    def purge_it(tell: "Tell") -> "PurgeReport":
        purge = partial(purge_queue, tell=tell, may_lack_objects=may_lack_objects)
        return on_store(settings, purge, any_format=True)

    return run_purge(subject, purge_it, as_json=as_json)

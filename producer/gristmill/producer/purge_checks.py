"""Check before a purge that nobody works on the queue. `gristmill queue purge` calls it."""

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.file_purge import FilePurge
from gristmill.shared.errors import GristmillError
from gristmill.shared.queue_purge import Holders, holders

MAX_EXAMPLES = 3
"""Names of workers, batches or producers in a message."""


async def check_unheld(store: BatchStore) -> None:
    """Check that no process works on the queue, or on children of its batches in other queues.

    Raises:
        GristmillError: Workers, stewards or producers hold leases; the message says what to stop.
    """
    held = await holders(store.queue)
    children = await FilePurge(store, None).held_children()
    held = held._replace(batches=sorted({*held.batches, *children}))
    if any(held):
        raise GristmillError(_how_to_stop(store.queue.keys.queue, held))


def _how_to_stop(queue: str, held: Holders) -> str:
    reasons = []
    if held.workers:
        names = ", ".join(held.workers[:MAX_EXAMPLES])
        reasons.append(f"{len(held.workers):,} workers hold a lease ({names}); stop the workers")
    if held.batches:
        names = ", ".join(held.batches[:MAX_EXAMPLES])
        reasons.append(f"stewards hold {len(held.batches):,} batches ({names}); stop the stewards")
    if held.producers:
        names = ", ".join(held.producers[:MAX_EXAMPLES])
        reasons.append(f"{len(held.producers):,} producers are submitting ({names}); stop them")
    return f"queue {queue} is in use: {'; '.join(reasons)}, or repeat with --force"

r"""What a steward does with a batch, phase by phase; where each phase ends and the next begins.

    validating -> in_progress -> finalizing -> completed
        |             |              \-> expired, cancelled     (closing says which)
        \-> failed    \-> cancelling (as clients see it, from the cancel until finalizing)

Every phase takes the batch up at its last commit, works under its lease and ends in a commit, so
`advance` may be called at any time, by any number of stewards, and may die at any point.
"""

import time

import structlog
from redis.exceptions import LockError

from gristmill.producer.batches.feed import Feeder, MayGoOn
from gristmill.producer.batches.finalize import finalize, tidy
from gristmill.producer.batches.objects import BatchError, BatchErrors
from gristmill.producer.batches.registry import BatchLease, BatchState
from gristmill.producer.batches.service import Batches
from gristmill.producer.batches.validate import validate
from gristmill.shared.errors import LeaseLost, NotFound

log = structlog.get_logger()


async def advance(batches: Batches, batch_id: str, may_go_on: MayGoOn) -> None:
    """Do what is next for a batch, if no other steward is at it.

    Args:
        batches: Queue, storage, settings.
        batch_id: Which batch.
        may_go_on: Asked between steps; when it says no, what was done is committed and the rest is
            left to the next.

    Raises:
        NotFound: There is no such batch.
        Exception: Whatever stood in the way; the batch is due again after a growing pause.
    """
    await batches.registry.state(batch_id)
    lease = await batches.registry.lease(batch_id)
    if lease is None:
        return
    try:
        await _advance(batches, lease, await batches.registry.state(batch_id), may_go_on)
    except (LeaseLost, LockError):
        log.warning("batch.lost", batch=batch_id)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        delay_s = await batches.registry.back_off(batch_id, problem)
        log.warning("batch.postponed", batch=batch_id, delay_s=delay_s)
        raise
    finally:
        await lease.release()


async def _advance(
    batches: Batches, lease: BatchLease, state: BatchState, may_go_on: MayGoOn
) -> None:
    if state.record.status == "finalizing":
        await finalize(batches, lease, state)
    elif state.record.is_final:
        await tidy(batches, lease, state)
    elif state.phase == "validate" and state.is_cancelled:
        await batches.end_early(lease, state)
    elif state.phase in ("validate", "feed"):
        await _read(batches, lease, state, may_go_on)


async def _read(batches: Batches, lease: BatchLease, state: BatchState, may_go_on: MayGoOn) -> None:
    """Do a phase that reads the input; without one the batch ends.

    A storage that is away may look the same as a file that is gone, so that counts only when the
    completion window is over.
    """
    try:
        path = await batches.input_path(state.record)
        if state.phase == "feed":
            await Feeder(batches, lease, state, path).run(may_go_on)
        else:
            await validate(batches, lease, state, path)
    except (NotFound, FileNotFoundError) as error:
        if isinstance(error, FileNotFoundError) and time.time() < state.record.expires_at:
            raise
        now = await batches.registry.state(state.record.id)
        errors = BatchErrors(data=(BatchError(code="file_not_found", message=str(error)),))
        await batches.give_up(lease, now, errors)

r"""The phases of a batch, and the step that a steward takes in each.

    validating -> in_progress -> finalizing -> completed
        |             |              \-> expired, cancelled, failed   (`closing` says which)
        \-> failed    \-> cancelling (as clients see it, from the cancel until finalizing)

A batch with children has no lines to execute: in progress, it follows its children (`following.py`).

Each phase starts at the last commit, works under a lease and ends in a commit. So any number of
stewards may call `advance` at any time, and each may die at any point.
"""

import time
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from redis.exceptions import LockError

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.lifecycle.early_end import end_without_rows, fail_with_rows
from gristmill.producer.batches.lifecycle.execution import Execution, MayGoOn
from gristmill.producer.batches.lifecycle.finalization import delete_parts, finalize
from gristmill.producer.batches.lifecycle.following import follow
from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.batches.lifecycle.validation import Validation
from gristmill.producer.batches.objects import BatchError, BatchErrors
from gristmill.shared.errors import LeaseLost, NotFound

log = structlog.get_logger()


async def advance(store: BatchStore, batch_id: str, may_go_on: MayGoOn) -> None:
    """Do the next step of a batch, unless another steward holds it.

    Args:
        store: The batches of the queue.
        batch_id: Id of the batch.
        may_go_on: Called before each step. Once it returns False, the steward commits the work so
            far, and the next call of `advance` does the rest.

    Raises:
        NotFound: There is no such batch.
        Exception: Any error of a step. The batch is due again after a delay that grows.
    """
    await with_lease(store, batch_id, partial(_do_phase, store, may_go_on))


async def with_lease(
    store: BatchStore, batch_id: str, step: Callable[[LeasedBatch], Awaitable[None]]
) -> None:
    """Do a step of a batch under its lease; do nothing if another steward holds it.

    Args:
        store: The batches of the queue.
        batch_id: Id of the batch.
        step: Called with the batch as it is now.

    Raises:
        NotFound: There is no such batch.
        Exception: Any error of the step. The batch is due again after a delay that grows.
    """
    leased = await LeasedBatch.take(store, batch_id)
    if leased is None:
        return
    try:
        await leased.reload()
        await step(leased)
    except (LeaseLost, LockError):
        log.warning("batch.lost", batch=batch_id)
    except Exception as error:
        delay_s = await store.due.back_off(leased.state, f"{type(error).__name__}: {error}")
        log.warning("batch.postponed", batch=batch_id, delay_s=delay_s)
        raise
    finally:
        await leased.release()


async def _do_phase(store: BatchStore, may_go_on: MayGoOn, leased: LeasedBatch) -> None:
    state = leased.state
    if state.phase == "follow":
        await follow(store, leased, partial(_advance_other, may_go_on))
    elif state.record.status == "finalizing":
        await finalize(store, leased)
    elif state.record.is_final and state.phase == "finalize":
        await delete_parts(store, leased)
    elif state.phase == "validate" and state.is_cancelled:
        await end_without_rows(leased)
    elif state.phase in ("validate", "execute"):
        await _read_input(store, leased, may_go_on)


async def _advance_other(may_go_on: MayGoOn, store: BatchStore, batch_id: str) -> None:
    await advance(store, batch_id, may_go_on)


async def _read_input(store: BatchStore, leased: LeasedBatch, may_go_on: MayGoOn) -> None:
    """Validate or execute the batch; without its input it ends.

    An unreachable storage and a deleted file may raise the same error. So a missing object ends the
    batch only when the completion window is over.
    """
    record = leased.record
    try:
        home = store.of_queue(record.home) if record.home else store
        path = (await home.files.get(record.tenant, record.input_file_id)).path
        if leased.state.phase == "execute":
            await Execution(store, leased, path).run(may_go_on)
        else:
            await Validation(store, leased).run(path, may_go_on)
    except (NotFound, FileNotFoundError) as error:
        if isinstance(error, FileNotFoundError) and time.time() < record.expires_at:
            raise
        await leased.reload()
        errors = BatchErrors(data=(BatchError(code="file_not_found", message=str(error)),))
        if leased.record.status == "validating":
            await end_without_rows(leased, errors)
        else:
            await fail_with_rows(leased, errors)

"""How a client waits: one task for all that it waits for, woken by its reply list.

`Client` owns one `Waiter`. An id that this client submitted is pushed to its reply list when it
finishes, so waiting costs no polling. That list is capped and a pop can be lost with a connection,
so a slow sweep looks at every id again; ids that somebody else submitted are found by the sweep alone.
"""

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from redis.exceptions import RedisError

from gristmill.producer.arguments import closed_client
from gristmill.producer.worker_watch import WorkerWatch
from gristmill.shared.chunking import chunks
from gristmill.shared.errors import ResultExpired
from gristmill.shared.operations import IDS_A_CALL
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import is_transient, retrying
from gristmill.shared.results import Result
from gristmill.shared.tasks import end

RESULTS_A_CALL = 64
BLOCK_S = 1.0
OWN_SWEEP_S = 5.0
FOREIGN_SWEEP_MIN_S = 0.05
FOREIGN_SWEEP_MAX_S = 1.0

_OF_BATCH = re.compile(r"(batch_[0-9A-Z]{26})(?:-\d+)?$")
"""A batch of a steward, or the request of one of its lines."""


@dataclass(slots=True)
class _Awaited:
    """One id that somebody waits for.

    Attributes:
        future: Ends with the result.
        num_waiting: How many wait; at 0 the id is forgotten.
        is_own: Whether the reply list will name it.
    """

    future: "asyncio.Future[Result]"
    num_waiting: int
    is_own: bool


class Waiter:
    """Turns ids into futures of results.

    Args:
        queue: Where the results appear.
        client: The name of the reply list.
        watch: Looks for live workers while somebody waits.
    """

    def __init__(self, queue: Queue, client: str, watch: WorkerWatch) -> None:
        self._queue = queue
        self._watch = watch
        self._reply_key = queue.keys.finished(client)
        self._awaited: dict[str, _Awaited] = {}
        self._task: asyncio.Task[None] | None = None
        self._sweep_s = FOREIGN_SWEEP_MIN_S
        self._unseen: list[str] = []
        self._looking = asyncio.Lock()

    def expect(self, request_id: str, *, is_own: bool) -> "asyncio.Future[Result]":
        """Return the future of an id; `forget` it when it no longer matters."""
        awaited = self._awaited.get(request_id)
        if awaited is None:
            awaited = _Awaited(asyncio.get_running_loop().create_future(), 0, is_own)
            self._awaited[request_id] = awaited
            self._sweep_s = FOREIGN_SWEEP_MIN_S
        awaited.num_waiting += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="gristmill-waiter")
        return awaited.future

    async def look(self, request_id: str) -> None:
        """Resolve an expected id if it has its result already: its end may have been announced before.

        Calls at the same time share one look, so that thousands of them need one connection.
        """
        self._unseen.append(request_id)
        async with self._looking:
            ids, self._unseen = self._unseen, []
            try:
                await self._collect(ids)
            except BaseException:
                self._unseen += ids  # for the calls that wait here
                raise

    def forget(self, request_id: str, future: "asyncio.Future[Result]") -> None:
        """Take back the `expect` that returned this future."""
        awaited = self._awaited.get(request_id)
        if awaited is None or awaited.future is not future:
            return
        awaited.num_waiting -= 1
        if awaited.num_waiting == 0:
            del self._awaited[request_id]

    async def aclose(self) -> None:
        """Stop waiting; who still waits gets the error of a closed client."""
        for awaited in self._awaited.values():
            _fail(awaited.future, closed_client())
        self._awaited.clear()
        await end(self._task)

    async def _run(self) -> None:
        try:
            await self._wait_for_all()
        except Exception as error:  # noqa: BLE001  # whatever it is, nobody may wait for ever
            for awaited in list(self._awaited.values()):
                _fail(awaited.future, error)
            self._awaited.clear()

    async def _wait_for_all(self) -> None:
        next_own_sweep = time.monotonic() + OWN_SWEEP_S
        self._watch.begin()
        while self._awaited:
            has_foreign = any(not awaited.is_own for awaited in self._awaited.values())
            finished = await self._next_replies(self._sweep_s if has_foreign else BLOCK_S)
            await self._collect(
                [request_id for request_id in finished if request_id in self._awaited]
            )
            if time.monotonic() >= next_own_sweep:
                next_own_sweep = time.monotonic() + OWN_SWEEP_S
                await self._sweep(list(self._awaited))
            elif has_foreign:
                await self._sweep([i for i, awaited in self._awaited.items() if not awaited.is_own])
            if self._awaited:
                await self._watch.look()

    async def _next_replies(self, timeout_s: float) -> list[str]:
        """Return ids that finished, waiting up to `timeout_s` for the first."""
        try:
            first = await self._queue.redis.blpop([self._reply_key], timeout=timeout_s)
            if first is None:
                return []
            more = await self._queue.redis.lpop(self._reply_key, IDS_A_CALL)
        except (RedisError, OSError) as error:
            if not is_transient(error):
                raise
            await asyncio.sleep(timeout_s)
            return []
        return [request_id.decode() for request_id in (first[1], *(more or ()))]

    async def _collect(self, ids: Sequence[str]) -> int:
        """Resolve those of `ids` that have results now; returns how many."""
        found = 0
        for chunk in chunks(ids, RESULTS_A_CALL):
            results = await retrying(partial(self._queue.results, chunk))
            for result in filter(None, results):
                found += 1
                self._resolve(result)
        return found

    def _resolve(self, result: Result) -> None:
        awaited = self._awaited.pop(result.id, None)
        if awaited and not awaited.future.done():
            awaited.future.set_result(result)

    async def _sweep(self, ids: list[str]) -> None:
        """Look at ids one by one: finished unheard, past their deadline, or gone for good."""
        await retrying(self._queue.expire)
        found = 0
        for chunk in chunks(ids, IDS_A_CALL):
            states = await retrying(partial(self._queue.status, chunk))
            found += await self._collect(
                [i for i, (state, _) in zip(chunk, states, strict=True) if state == "done"]
            )
            for request_id, (state, _) in zip(chunk, states, strict=True):
                if state == "unknown":
                    self._fail_expired(request_id)
        self._sweep_s = (
            FOREIGN_SWEEP_MIN_S if found else min(self._sweep_s * 1.5, FOREIGN_SWEEP_MAX_S)
        )

    def _fail_expired(self, request_id: str) -> None:
        awaited = self._awaited.pop(request_id, None)
        if awaited:
            _fail(awaited.future, result_expired(request_id, self._queue.keys.queue))


def _fail(future: "asyncio.Future[Result]", error: Exception) -> None:
    """End a future with an error. asyncio logs none that nobody reads: one error may end thousands."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def result_expired(request_id: str, queue: str) -> ResultExpired:
    """Return the error for an id that a queue does not know."""
    if found := _OF_BATCH.match(request_id):
        reason = (
            "the queue has no result under this id: a batch's results are deleted once their rows are written;"
            f" read the rows: gristmill batch results {found[1]} --queue {queue}"
        )
    else:
        reason = (
            "the id is unknown: it was never submitted to this queue, its result's TTL"
            " (GRISTMILL_RESULT_TTL_S) has ended, or a purge deleted it; submit it again if you still need it"
        )
    return ResultExpired(reason, request_id=request_id)

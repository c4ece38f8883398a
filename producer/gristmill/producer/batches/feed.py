"""Feed a batch to the queue a window at a time, and write down what comes back.

A line is *outstanding* from the commit that says so until the commit that writes its row. Whoever
takes the batch over begins at the last commit: what he submits again is known to the queue, and a
result is deleted only after its row is committed, so no line is run twice or has two rows.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from gristmill.producer.batches.ledger import Ledger, number_of
from gristmill.producer.batches.lines import Line, lines_of, some
from gristmill.producer.batches.pace import Pace
from gristmill.producer.batches.parts import MAX_BYTES, Rows
from gristmill.producer.batches.registry import BatchLease, BatchState
from gristmill.producer.batches.service import Batches
from gristmill.producer.batches.skipped import Skipped
from gristmill.producer.batches.window import commit_interval_s, room
from gristmill.shared.errors import QueueFull
from gristmill.shared.operations import IDS_A_CALL
from gristmill.shared.request import Request
from gristmill.shared.results import Result

LINES_A_SUBMIT = 128
MAX_RESULTS_A_CALL = 128
RESULT_BYTES_A_CALL = 8 * 2**20
REPLY_WAIT_S = 0.25
LOOK_S = 1.0
SWEEP_S = 5.0
MAX_SLICE_S = 300.0
CLOCKS_DIFFER_S = 2.0
MAX_UNCOMMITTED = 5_000
"""Rows after which a commit is due: their results are in Redis until then."""


MayGoOn = Callable[[float], bool]
"""Whether a slice may begin another step, after so many seconds in which it had nothing to do."""


class Feeder:
    """One slice of work on one batch.

    Args:
        batches: Queue, storage, settings.
        lease: Held for the whole slice.
        state: As it was committed last.
        input_path: Where the input lies.
    """

    def __init__(
        self, batches: Batches, lease: BatchLease, state: BatchState, input_path: str
    ) -> None:
        self._batches = batches
        self._queue = batches.queue
        self._lease = lease
        self._state = state
        self._input_path = input_path
        self._reader = batches.reader(state.record)
        self._ledger = Ledger(state, Rows(batches.storage, state.record.id))
        self._num_in_flight = 0
        self._waiting: list[Request] = []
        self._pace = Pace()

    async def run(self, may_go_on: MayGoOn) -> None:
        """Work until the batch is read and answered, or until others should have their turn.

        Args:
            may_go_on: Asked between steps.

        Raises:
            LeaseLost, redis.exceptions.RedisError, OSError: What is committed stands; whoever comes
                next goes on from there.
        """
        path = self._state.progress.skipped
        skipped = await self._lease.hold(partial(Skipped.read, self._batches.storage, path))
        with self._batches.storage.open(self._input_path, self._ledger.offset) as stream:
            lines = self._unread(lines_of(
                stream, self._reader.max_line_bytes, number=self._ledger.line, offset=self._ledger.offset
            ), skipped)  # fmt: skip
            await self._look()
            await self._sweep()
            while (
                not self._ledger.is_done
                and may_go_on(self._pace.waited_s("work"))
                and self._pace.age_s < MAX_SLICE_S
            ):
                await self._step(lines)
        await self._commit()

    async def _step(self, lines: Iterator[Line]) -> None:
        if self._pace.waited_s("look") > LOOK_S:
            await self._look()
        if self._pace.waited_s("sweep") > SWEEP_S:
            await self._sweep()
        await (self._close(lines) if self._ledger.closing else self._fill(lines))
        await self._collect(await self._replies())
        if self._is_commit_due():
            await self._commit()

    # --- reading

    def _unread(self, lines: Iterator[Line], skipped: Skipped) -> Iterator[Line]:
        """Yield lines that have no row yet; the ledger follows what was taken."""
        for line in lines:
            self._ledger.line, self._ledger.offset = line.number, line.end
            if line.number not in skipped:
                yield line
        self._ledger.is_read = True

    async def _fill(self, lines: Iterator[Line]) -> None:
        """Submit lines until the window is full."""
        await self._submit(self._waiting)
        num_free, max_bytes = self._room(), self._batches.settings.batch_window_bytes
        for start in range(0, num_free, LINES_A_SUBMIT):
            step = await self._lease.hold(
                partial(some, lines, min(LINES_A_SUBMIT, num_free - start))
            )
            await self._submit(self._requests(step))
            if not step or self._waiting or self._ledger.outstanding_bytes >= max_bytes:
                break

    def _room(self) -> int:
        ledger, settings = self._ledger, self._batches.settings
        if ledger.is_read or self._waiting:
            return 0
        return room(
            num_outstanding=ledger.num_unwritten, outstanding_bytes=ledger.outstanding_bytes,
            num_in_flight=self._num_in_flight, finished_per_s=self._pace.finished_per_s,
            max_requests=settings.batch_window_requests, max_bytes=settings.batch_window_bytes,
        )  # fmt: skip

    def _requests(self, lines: Sequence[Line]) -> list[Request]:
        """Return the requests of lines, which are outstanding from now on."""
        requests = []
        for line in lines:
            entry = self._reader.read(line)
            if isinstance(entry, Request):
                self._ledger.expect(line)
                requests.append(entry)
            else:  # a limit was lowered since the file was validated
                self._ledger.end_bad(entry)
        return requests

    async def _submit(self, requests: list[Request]) -> None:
        """Submit requests; what a full queue does not take waits for the next step."""
        self._waiting = []
        if not requests:
            return
        self._pace.done("work")
        try:
            await self._queue.submit(requests, lease=self._lease.held)
        except QueueFull:
            self._waiting = requests
            if len(requests) > 1:
                middle = len(requests) // 2
                await self._submit(requests[:middle])
                self._waiting = self._waiting + requests[middle:]

    async def _close(self, lines: Iterator[Line]) -> None:
        """End lines that were not read yet: cancel what the queue has of them, give the others a row."""
        step = await self._lease.hold(partial(some, lines, IDS_A_CALL))
        ids = [self._ledger.id_of(line.number) for line in step]
        codes = await self._queue.cancel(ids) if ids else []
        for line, code in zip(step, codes, strict=True):
            if code == "unknown":
                self._ledger.end_unanswered(line, self._reader.read(line))
            else:
                self._ledger.expect(line)

    # --- collecting

    async def _replies(self) -> list[str]:
        """Return ids that finished, waiting a moment for the first if there is nothing else to do."""
        key = self._queue.keys.finished(self._state.record.id)
        redis: Any = self._queue.redis
        if found := await redis.lpop(key, IDS_A_CALL):
            return [request_id.decode() for request_id in found]
        if self._ledger.is_done or (self._ledger.closing and not self._ledger.is_read):
            return []
        first = await redis.blpop([key], timeout=REPLY_WAIT_S)
        return [first[1].decode()] if first else []

    async def _collect(self, ids: Sequence[str]) -> None:
        known = [found for found in ids if number_of(found) in self._ledger.outstanding]
        if known:
            self._pace.done("work")
        while known:
            number = self._ledger.results_within(RESULT_BYTES_A_CALL, MAX_RESULTS_A_CALL)
            some_ids, known = known[:number], known[number:]
            results = await self._queue.results(some_ids)
            if self._is_window_over(results):
                await self._begin_to_close("expired")  # which gives these their row, too
            for result in results:
                if result and self._ledger.finish(result):
                    self._pace.count()

    def _is_window_over(self, results: Sequence[Result | None]) -> bool:
        """Whether the queue was first to notice: each request has what is left of the window as its deadline."""
        is_any_expired = any(result and result.status == "expired" for result in results)
        window_ends_s = self._state.record.expires_at - CLOCKS_DIFFER_S
        return not self._ledger.closing and is_any_expired and time.time() >= window_ends_s

    # --- looking

    async def _look(self) -> None:
        """See what has changed outside: the workers' load, a cancel, the time."""
        self._pace.done("look")
        await self._lease.extend()
        self._reader = self._batches.reader(self._state.record)  # for the time that is left
        self._num_in_flight = (await self._queue.stats()).counters.get("in_flight", 0)
        if self._ledger.closing:
            return
        if await self._batches.registry.is_cancelled(self._state.record.id):
            await self._begin_to_close("cancelled")
        elif time.time() >= self._state.record.expires_at:
            await self._begin_to_close("expired")

    async def _begin_to_close(self, closing: Any) -> None:
        self._ledger.closing = closing
        self._waiting = []  # the next sweep finds that the queue does not know them
        ids = [self._ledger.id_of(number) for number in self._ledger.outstanding]
        await self._queue.cancel(ids)
        await self._sweep()

    async def _sweep(self) -> None:
        """Find what finished unheard, and what was never submitted."""
        self._pace.done("sweep")
        await self._queue.expire()
        waiting = {number_of(request.id) for request in self._waiting}
        numbers = [number for number in self._ledger.outstanding if number not in waiting]
        unknown: list[int] = []
        for start in range(0, len(numbers), IDS_A_CALL):
            some = numbers[start : start + IDS_A_CALL]
            ids = [self._ledger.id_of(number) for number in some]
            states = [state for state, _ in await self._queue.status(ids)]
            pairs = list(zip(some, states, strict=True))
            await self._collect([self._ledger.id_of(n) for n, state in pairs if state == "done"])
            unknown += [n for n, state in pairs if state == "unknown"]
        await self._bring_back(unknown)

    async def _bring_back(self, numbers: Sequence[int]) -> None:
        """Submit lines that are outstanding and not in the queue, or end them if the batch ends."""
        lines = self._reread(sorted(numbers))
        while step := some(lines, LINES_A_SUBMIT):
            if self._ledger.closing:
                for line in step:
                    self._ledger.end_unanswered(line, self._reader.read(line))
            elif not self._waiting:  # a full queue takes the others after the next sweep
                await self._submit(self._requests(step))

    def _reread(self, numbers: Sequence[int]) -> Iterator[Line]:
        if not numbers:
            return
        with self._batches.storage.open(self._input_path) as stream:
            for number in numbers:
                start = self._ledger.outstanding[number].start
                stream.seek(start)
                max_bytes = self._reader.max_line_bytes
                yield next(lines_of(stream, max_bytes, number=number - 1, offset=start))

    # --- committing

    def _is_commit_due(self) -> bool:
        if self._ledger.is_done:  # `run` commits
            return False
        num_bytes = self._ledger.rows.num_bytes
        if num_bytes > MAX_BYTES or len(self._ledger.written) >= MAX_UNCOMMITTED:
            return True
        age_s = time.time() - (self._state.record.in_progress_at or 0)
        return num_bytes > 0 and self._pace.waited_s("commit") > commit_interval_s(age_s)

    async def _commit(self) -> None:
        """Write rows, record and progress; then forget the results that have their row now."""
        await self._lease.hold(self._ledger.rows.flush)
        record, progress, parts = self._ledger.commit(self._state)
        self._state = await self._batches.commit(
            self._lease, self._state, record, progress, parts=parts
        )
        self._pace.done("commit")
        written, self._ledger.written = self._ledger.written, []
        for start in range(0, len(written), IDS_A_CALL):
            await self._queue.forget(written[start : start + IDS_A_CALL])
        if self._ledger.is_done:
            await self._queue.redis.unlink(self._queue.keys.finished(self._state.record.id))

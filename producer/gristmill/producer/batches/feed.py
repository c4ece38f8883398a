"""Feed a batch to the queue a window at a time, and write down what comes back.

A line is *outstanding* from the commit that says so until the commit that writes its row. Whoever
takes the batch over begins at the last commit: what he submits again is known to the queue, and a
result is deleted only after its row is committed, so no line is run twice or has two rows.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from gristmill.producer.batches.input import custom_id_of, name_of
from gristmill.producer.batches.lines import Line, lines_of
from gristmill.producer.batches.objects import BatchRecord, BatchUsage
from gristmill.producer.batches.parts import MAX_BYTES, Rows
from gristmill.producer.batches.progress import Place
from gristmill.producer.batches.registry import BatchLease, BatchState
from gristmill.producer.batches.rows import bad_line_row, result_row, unanswered_row
from gristmill.producer.batches.service import Batches
from gristmill.producer.batches.skipped import Skipped
from gristmill.producer.batches.window import commit_interval_s, room
from gristmill.shared.errors import QueueFull
from gristmill.shared.records import Request
from gristmill.shared.results import Result

LINES_A_SUBMIT = 128
SUBMIT_BYTES = 8 * 2**20
RESULTS_A_CALL = 128
IDS_A_CALL = 500
REPLY_WAIT_S = 0.25
LOOK_S = 1.0
SWEEP_S = 5.0
MAX_SLICE_S = 300.0
MAX_UNCOMMITTED = 5_000
"""Rows after which a commit is due: their results are in Redis until then."""

REASONS = {
    "cancelled": ("batch_cancelled", "the batch was cancelled before this line was finished"),
    "expired": ("batch_expired", "the completion window ended before this line was finished"),
}


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
        self._rows = Rows(batches.storage, state.record.id)
        self._outstanding = {n: Place(*place) for n, place in state.progress.outstanding.items()}
        self._outstanding_bytes = sum(place.size for place in self._outstanding.values())
        self._line, self._offset = state.progress.line, state.progress.offset
        self._is_read = state.progress.is_read
        self._closing = state.record.closing
        self._counts: Counter[str] = Counter()
        self._usage: Counter[str] = Counter()
        self._uncommitted: list[str] = []
        self._num_in_flight = 0
        self._waiting: list[Request] = []
        self._pace = Pace()
        self._committed_at = time.monotonic()

    async def run(self, may_go_on: Callable[[], bool]) -> None:
        """Work until the batch is read and answered, or until others should have their turn.

        Args:
            may_go_on: Asked between steps.

        Raises:
            LeaseLost, redis.exceptions.RedisError, OSError: What is committed stands; whoever comes
                next goes on from there.
        """
        end_s = time.monotonic() + MAX_SLICE_S
        skipped = Skipped.read(self._batches.storage, self._state.progress.skipped)
        with self._batches.storage.open(self._input_path, self._offset) as stream:
            lines = self._unread(lines_of(
                stream, self._reader.max_line_bytes, number=self._line, offset=self._offset
            ), skipped)  # fmt: skip
            await self._look()
            await self._sweep()
            while not self._is_done and may_go_on() and time.monotonic() < end_s:
                await self._step(lines)
        await self._commit()

    @property
    def _is_done(self) -> bool:
        return self._is_read and not self._outstanding

    async def _step(self, lines: Iterator[Line]) -> None:
        if self._pace.is_due("look", LOOK_S):
            await self._look()
        if self._pace.is_due("sweep", SWEEP_S):
            await self._sweep()
        await (self._close(lines) if self._closing else self._fill(lines))
        await self._collect(await self._replies())
        if self._is_commit_due():
            await self._commit()

    # --- reading

    def _unread(self, lines: Iterator[Line], skipped: Skipped) -> Iterator[Line]:
        """Yield lines that have no row yet; `_line` and `_offset` follow what was taken."""
        for line in lines:
            self._line, self._offset = line.number, line.end
            if line.number not in skipped:
                yield line
        self._is_read = True

    async def _fill(self, lines: Iterator[Line]) -> None:
        """Submit lines until the window is full."""
        await self._submit(self._waiting)
        num_free = self._room()
        for start in range(0, num_free, LINES_A_SUBMIT):
            step = _limited(islice(lines, min(LINES_A_SUBMIT, num_free - start)))
            await self._submit([*self._requests(step)])
            if not step or self._waiting:
                break

    def _room(self) -> int:
        if self._is_read or self._waiting:
            return 0
        settings = self._batches.settings
        return room(
            num_outstanding=len(self._outstanding) + len(self._uncommitted), outstanding_bytes=self._outstanding_bytes,
            num_in_flight=self._num_in_flight, finished_per_s=self._pace.per_s,
            max_requests=settings.batch_window_requests, max_bytes=settings.batch_window_bytes,
        )  # fmt: skip

    def _requests(self, lines: list[Line]) -> Iterator[Request]:
        """Yield the requests of lines, which are outstanding from now on."""
        for line in lines:
            entry = self._reader.read(line)
            if isinstance(entry, Request):
                self._expect(line)
                yield entry
            else:  # a limit was lowered since the file was validated
                self._drop(line.number)
                self._rows.add("error", bad_line_row(self._state.record.id, entry))
                self._counts["failed"] += 1

    def _expect(self, line: Line) -> None:
        if line.number not in self._outstanding:
            self._outstanding[line.number] = Place(line.start, line.end - line.start)
            self._outstanding_bytes += line.end - line.start

    def _drop(self, number: int) -> bool:
        """Make a line no longer outstanding; False if it was not."""
        place = self._outstanding.pop(number, None)
        if place is not None:
            self._outstanding_bytes -= place.size
        return place is not None

    async def _submit(self, requests: list[Request]) -> None:
        """Submit requests; what a full queue does not take waits for the next step."""
        self._waiting = []
        if not requests:
            return
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
        step = list(islice(lines, IDS_A_CALL))
        codes = await self._queue.cancel([self._id(line.number) for line in step]) if step else []
        for line, code in zip(step, codes, strict=True):
            if code == "unknown":
                self._end_unanswered(line)
            else:
                self._expect(line)

    def _end_unanswered(self, line: Line) -> None:
        code, message = REASONS[self._closing or "cancelled"]
        entry = self._reader.read(line)
        custom_id = custom_id_of(entry) if isinstance(entry, Request) else name_of(line)
        self._rows.add("error", unanswered_row(self._id(line.number), custom_id, code, message))
        self._counts[self._closing or "cancelled"] += 1

    # --- collecting

    async def _replies(self) -> list[str]:
        """Return ids that finished, waiting a moment for the first if there is nothing else to do."""
        key = self._queue.keys.reply(self._state.record.id)
        redis: Any = self._queue.redis
        if found := await redis.lpop(key, IDS_A_CALL):
            return [request_id.decode() for request_id in found]
        if self._is_done or (self._closing and not self._is_read):
            return []
        first = await redis.blpop([key], timeout=REPLY_WAIT_S)
        return [first[1].decode()] if first else []

    async def _collect(self, ids: list[str]) -> None:
        known = [request_id for request_id in ids if self._number(request_id) in self._outstanding]
        for start in range(0, len(known), RESULTS_A_CALL):
            for result in await self._queue.results(known[start : start + RESULTS_A_CALL]):
                if result:
                    self._finish(result)

    def _finish(self, result: Result) -> None:
        if not self._drop(self._number(result.id)):
            return
        self._uncommitted.append(result.id)
        self._pace.count()
        ending = result.status if result.status in REASONS else None
        if self._closing and ending:
            code, message = REASONS[self._closing]
            custom_id = str((result.metadata or {}).get("custom_id"))
            self._rows.add("error", unanswered_row(result.id, custom_id, code, message))
            self._counts[self._closing] += 1
            return
        self._rows.add("output" if result.is_success else "error", result_row(result))
        self._counts["completed" if result.is_success else ending or "failed"] += 1
        usage = (result.body or {}).get("usage") or {} if result.is_success else {}
        self._usage["input_tokens"] += usage.get("prompt_tokens") or usage.get("input_tokens") or 0
        self._usage["output_tokens"] += (
            usage.get("completion_tokens") or usage.get("output_tokens") or 0
        )

    # --- looking

    async def _look(self) -> None:
        """See what has changed outside: the workers' load, a cancel, the time."""
        await self._lease.extend()
        self._reader = self._batches.reader(self._state.record)  # for the time that is left
        self._num_in_flight = (await self._queue.stats()).counters.get("in_flight", 0)
        if self._closing is None:
            state = await self._batches.registry.state(self._state.record.id)
            is_late = time.time() >= self._state.record.expires_at
            self._closing = "cancelled" if state.is_cancelled else "expired" if is_late else None
            if self._closing:
                await self._cancel_outstanding()

    async def _cancel_outstanding(self) -> None:
        ids = [self._id(number) for number in self._outstanding]
        for start in range(0, len(ids), IDS_A_CALL):
            await self._queue.cancel(ids[start : start + IDS_A_CALL])

    async def _sweep(self) -> None:
        """Find what finished unheard, and what was never submitted."""
        await self._queue.expire()
        waiting = {self._number(request.id) for request in self._waiting}
        numbers = [number for number in self._outstanding if number not in waiting]
        for start in range(0, len(numbers), IDS_A_CALL):
            some = numbers[start : start + IDS_A_CALL]
            states = await self._queue.status([self._id(number) for number in some])
            await self._collect(
                [self._id(n) for n, (state, _) in zip(some, states, strict=True) if state == "done"]
            )
            await self._bring_back(
                [n for n, (state, _) in zip(some, states, strict=True) if state == "unknown"]
            )

    async def _bring_back(self, numbers: list[int]) -> None:
        """Submit lines that are outstanding and not in the queue, or end them if the batch ends."""
        lines = self._reread(sorted(numbers))
        while step := _limited(islice(lines, LINES_A_SUBMIT)):
            if not self._closing:
                await self._submit([*self._waiting, *self._requests(step)])
                continue
            for line in step:
                self._drop(line.number)
                self._end_unanswered(line)

    def _reread(self, numbers: list[int]) -> Iterator[Line]:
        if not numbers:
            return
        with self._batches.storage.open(self._input_path) as stream:
            for number in numbers:
                start = self._outstanding[number].start
                stream.seek(start)
                max_bytes = self._reader.max_line_bytes
                yield next(lines_of(stream, max_bytes, number=number - 1, offset=start))

    # --- committing

    def _is_commit_due(self) -> bool:
        if self._is_done:  # `run` commits
            return False
        if self._rows.num_bytes > MAX_BYTES:
            return True
        age_s = time.time() - (self._state.record.in_progress_at or 0)
        waited_s = time.monotonic() - self._committed_at
        return len(self._uncommitted) >= MAX_UNCOMMITTED or (
            waited_s > commit_interval_s(age_s) and self._rows.num_bytes > 0
        )

    async def _commit(self) -> None:
        """Write rows, record and progress; then forget the results that have their row now."""
        await self._lease.hold(self._rows.flush)
        parts = self._rows.take()
        progress = replace(
            self._state.progress, line=self._line, offset=self._offset, is_read=self._is_read,
            outstanding=dict(self._outstanding), has_parts=self._state.progress.has_parts or bool(parts),
        )  # fmt: skip
        self._state = await self._batches.commit(
            self._lease, self._state, self._record(), progress, parts=parts
        )
        self._counts.clear()
        self._usage.clear()
        self._committed_at = time.monotonic()
        written, self._uncommitted = self._uncommitted, []
        for start in range(0, len(written), IDS_A_CALL):
            await self._queue.forget(written[start : start + IDS_A_CALL])
        if self._is_done:
            await self._queue.redis.unlink(self._queue.keys.reply(self._state.record.id))

    def _record(self) -> BatchRecord:
        before = self._state.record
        now = int(time.time())
        counts = before.request_counts
        update: dict[str, Any] = {
            "request_counts": counts.model_copy(
                update={name: getattr(counts, name) + n for name, n in self._counts.items()}
            ),
            "usage": _more_usage(before.usage, self._usage),
            "closing": self._closing,
        }
        if self._is_done:
            update |= {"status": "finalizing", "finalizing_at": now, "closing": self._closing or "completed"}  # fmt: skip
        return before.model_copy(update=update)

    def _id(self, number: int) -> str:
        return f"{self._state.record.id}-{number}"

    def _number(self, request_id: str) -> int:
        return int(request_id.rpartition("-")[2])


class Pace:
    """How fast requests finish, and when something was last done."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._num_finished = 0
        self._last_s: dict[str, float] = {}

    def count(self) -> None:
        """Note one that finished."""
        self._num_finished += 1

    @property
    def per_s(self) -> float:
        """Requests a second since this slice began."""
        return self._num_finished / max(1.0, time.monotonic() - self._start_s)

    def is_due(self, what: str, every_s: float) -> bool:
        """Whether something was not done for `every_s`; it counts as done now."""
        now_s = time.monotonic()
        if now_s - self._last_s.setdefault(what, self._start_s) < every_s:
            return False
        self._last_s[what] = now_s
        return True


def _limited(lines: Iterator[Line]) -> list[Line]:
    """Take lines until they are enough for one submit."""
    step: list[Line] = []
    num_bytes = 0
    for line in lines:
        step.append(line)
        num_bytes += len(line.raw)
        if num_bytes > SUBMIT_BYTES:
            break
    return step


def _more_usage(before: BatchUsage, more: Counter[str]) -> BatchUsage:
    input_tokens = before.input_tokens + more["input_tokens"]
    output_tokens = before.output_tokens + more["output_tokens"]
    return BatchUsage(
        input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=input_tokens + output_tokens
    )  # fmt: skip

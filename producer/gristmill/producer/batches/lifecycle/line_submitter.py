"""Submit the lines of a batch to the queue, as many as its window has room for."""

from collections.abc import Iterator, Sequence
from functools import partial

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.batches.lifecycle.line_tracker import LineTracker, number_of
from gristmill.producer.batches.lifecycle.slice_clock import SliceClock
from gristmill.producer.batches.lifecycle.window import room
from gristmill.producer.batches.rows import BadLine, Line, bad_request, lines_of, take_lines
from gristmill.producer.submit_spans import submit_spans
from gristmill.shared.errors import IdConflict, QueueFull
from gristmill.shared.operations import IDS_A_CALL
from gristmill.shared.request import Request
from gristmill.shared.trace_context import TRACEPARENT

LINES_A_SUBMIT = 128
"""Lines that one call reads and submits."""


class LineSubmitter:
    """Moves lines from the input into the queue.

    Args:
        store: The batches of the queue.
        leased: The batch.
        tracker: Tracker that learns which lines are outstanding.
        clock: The clock of the slice.
        input_path: Path of the input in the storage.

    Attributes:
        is_held: True while no further line may be submitted.
    """

    def __init__(
        self,
        store: BatchStore,
        leased: LeasedBatch,
        tracker: LineTracker,
        clock: SliceClock,
        input_path: str,
    ) -> None:
        self._queue = store.queue
        self._storage = store.storage
        self._settings = store.settings
        self._leased = leased
        self._tracker = tracker
        self._clock = clock
        self._input_path = input_path
        self._reader = leased.line_reader()
        self._num_in_flight = 0
        self._created_in = {TRACEPARENT: leased.record.traceparent}
        self._waiting: list[Request] = []
        self.is_held = False

    @property
    def max_line_bytes(self) -> int:
        """Most bytes of a line that are read."""
        return self._reader.max_line_bytes

    async def refresh(self) -> None:
        """Read the load of the workers, and make new requests expire with the window."""
        self._reader = self._leased.line_reader()
        self._num_in_flight = (await self._queue.stats()).counters.get("in_flight", 0)

    async def fill(self, lines: Iterator[Line]) -> None:
        """Submit lines until the window is full; none while they are held."""
        if self.is_held:
            return
        await self._submit(self._waiting)
        num_free = self._room()
        for start in range(0, num_free, LINES_A_SUBMIT):
            max_lines = min(LINES_A_SUBMIT, num_free - start)
            step = await self._leased.run_blocking(partial(take_lines, lines, max_lines))
            await self._submit(await self._read(step))
            is_full = self._tracker.outstanding_bytes >= self._settings.batch_window_bytes
            if not step or self._waiting or is_full:
                break

    async def end_unread(self, lines: Iterator[Line]) -> None:
        """End the next unread lines of a closing batch.

        An earlier steward may have submitted some of them. The queue cancels those and returns
        their results. The other lines get their row at once.
        """
        step = await self._leased.run_blocking(partial(take_lines, lines, IDS_A_CALL))
        ids = [self._tracker.id_of(line.number) for line in step]
        codes = await self._queue.cancel(ids) if ids else []
        for line, code in zip(step, codes, strict=True):
            if code == "unknown":
                self._tracker.finish_unanswered(line, self._reader.read(line))
            else:
                self._tracker.expect(line)

    async def restore(self, numbers: Sequence[int]) -> None:
        """Submit outstanding lines that the queue does not have. In a closing batch, end them."""
        lines = self._reread(sorted(numbers))
        while step := take_lines(lines, LINES_A_SUBMIT):
            if self._tracker.closing:
                for line in step:
                    self._tracker.finish_unanswered(line, self._reader.read(line))
            elif not self._waiting:  # after a full queue, the next reconciliation submits the rest
                await self._submit(await self._read(step))

    def drop_waiting(self) -> None:
        """Drop the requests that a full queue did not take; `restore` ends their lines."""
        self._waiting = []

    def waiting_lines(self) -> set[int]:
        """Return the numbers of the lines that a full queue did not take."""
        return {number_of(request.id) for request in self._waiting}

    def _room(self) -> int:
        tracker, settings = self._tracker, self._settings
        if tracker.is_read or self._waiting:
            return 0
        return room(
            num_outstanding=tracker.num_uncommitted, outstanding_bytes=tracker.outstanding_bytes,
            num_in_flight=self._num_in_flight, finished_per_s=self._clock.finished_per_s,
            max_requests=settings.batch_window_requests, max_bytes=settings.batch_window_bytes,
        )  # fmt: skip

    async def _read(self, lines: Sequence[Line]) -> list[Request]:
        """Do `_requests` in a thread, because large lines take seconds to parse, and the lease must be renewed."""
        return await self._leased.run_blocking(partial(self._requests, lines))

    def _requests(self, lines: Sequence[Line]) -> list[Request]:
        """Return the requests of good lines, which are now outstanding; give bad lines a row."""
        requests = []
        for line in lines:
            entry = self._reader.read(line)
            if isinstance(entry, Request):
                self._tracker.expect(line)
                requests.append(entry)
            else:  # a limit was lowered since the file was validated
                self._tracker.finish_bad(entry)
        return requests

    async def _submit(self, requests: list[Request]) -> None:
        """Submit requests; those that a full queue does not take wait for the next step."""
        self._waiting = []
        if not requests:
            return
        self._clock.mark("work")
        try:
            with submit_spans(requests, self._queue.keys.queue, self._created_in) as traced:
                codes = await self._queue.submit(traced, lease=self._leased.held)
        except QueueFull:
            self._waiting = requests
            if len(requests) > 1:
                middle = len(requests) // 2
                await self._submit(requests[:middle])
                self._waiting = self._waiting + requests[middle:]
            return
        for request, code in zip(requests, codes, strict=True):
            if code == "conflict":
                self._tracker.finish_bad(_foreign(request))

    def _reread(self, numbers: Sequence[int]) -> Iterator[Line]:
        if not numbers:
            return
        with self._storage.open(self._input_path) as stream:
            for number in numbers:
                start = self._tracker.outstanding[number].start
                stream.seek(start)
                yield next(lines_of(stream, self.max_line_bytes, number=number - 1, offset=start))


def _foreign(request: Request) -> BadLine:
    """Return the error of a line whose id belongs to a request that the batch did not submit."""
    reason = (
        f"the queue has another request under the id {request.id}, which no producer but this batch may use; create the"
        " batch again"
    )
    return bad_request(number_of(request.id), request, reason, IdConflict.code)

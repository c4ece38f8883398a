"""Submit the lines of a file and write each row as its request finishes.

`submission.py` and the demo call it.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path

import orjson

from gristmill.producer.batches.rows import (
    BadLine,
    SkippedRow,
    bad_line_row,
    first_id,
    result_row,
    skipped_row,
)
from gristmill.producer.batches.submit_run import Appended, failure_of_line
from gristmill.producer.client import Client
from gristmill.producer.commands.display import Display, display
from gristmill.producer.commands.hold_ups import LOOK_S, HoldUps
from gristmill.producer.commands.run_progress import RunProgress
from gristmill.producer.commands.submit_runs import RunInput
from gristmill.producer.commands.tally import Tally
from gristmill.shared.answers import mapping
from gristmill.shared.chunking import chunks
from gristmill.shared.fleet_cache import FleetCache
from gristmill.shared.operations import IDS_A_CALL
from gristmill.shared.queue_brakes import read_brakes
from gristmill.shared.redis_retry import retrying
from gristmill.shared.request import Request
from gristmill.shared.results import Result
from gristmill.shared.tasks import end

CHUNK = 5_000
"""Requests that `submit_only` submits in one call."""

MAX_SHARE_OF_STATUS = 0.02
"""Largest share of the time that the display may spend on asking Redis for states."""


class Collection:
    """One pass over an input: it submits a window at a time and writes rows as requests finish.

    Args:
        client: Client of the queue that gets the requests.
        batch_input: Input whose `check` was called.
        run: Name of the run.
        write: Callback that takes each row. It may return the outcome.
        tally: Counter of the finished lines.
        noun: What the input has, in messages: lines, or rows of a table.
        sync: Makes the rows so far survive a power cut. The results are then deleted from Redis, so its memory
            does not grow with the input. None keeps the results in Redis.
        finished: Element n is 1 if line n has its row already; None if no line has one.
        is_shown: True shows the progress, and what delays the requests.
        workers_log: Log of the workers that this command started; None if others did.
    """

    def __init__(
        self,
        client: Client,
        *,
        batch_input: RunInput,
        run: str,
        write: Callable[[bytes], Appended | None],
        tally: Tally,
        finished: bytearray | None = None,
        noun: str = "line",
        sync: Callable[[], None] | None = None,
        is_shown: bool = True,
        workers_log: Path | None = None,
    ) -> None:
        self._client = client
        self._run = run
        self._write = write
        self._tally = tally
        self._noun = noun
        self._sync = sync
        self._is_shown = is_shown
        self._workers_log = workers_log
        self._written: list[str] = []  # ids of written rows whose results are still in Redis
        self._batch = ""  # of the request that was read last
        self._entries = batch_input.entries(finished)
        self._again: deque[Callable[[], Request | BadLine]] = deque()  # lines whose answer was cut
        self._fleet = FleetCache(client.queue)
        self._unfinished: set[str] = set()
        self._cut: set[str] = set()  # ids of cut answers; a resume needs their results in Redis

    async def run(self, window: int) -> None:
        """Submit the lines, and return when every line has its row.

        Args:
            window: Most unfinished requests at a time, which bounds the memory of Redis.

        Raises:
            IdConflict: A run of this name submitted another input.
        """
        self._tally.begin_ms = (await retrying(self._client.queue.stats)).now_ms
        if self._is_shown:
            with display() as shown:
                async with self._watched(shown):
                    await self._passes(window)
                shown.show(self._tally.progress(Counter()))
        else:
            await self._passes(window)
        await self._forget_written()

    async def abandon(self) -> None:
        """Cancel the requests that have no row yet, and delete the results that are left; not while `run` runs."""
        for ids in chunks([*self._unfinished, *self._cut, *self._written], IDS_A_CALL):
            await retrying(partial(self._client.queue.cancel, ids))
            await retrying(partial(self._client.queue.forget, ids))

    async def _passes(self, window: int) -> None:
        # A worker with --until-empty must not end between two passes.
        async with self._client.submitting():
            await self._pass(window)
            while self._again:  # the last lines that were cut
                await self._pass(window)

    async def _pass(self, window: int) -> None:
        """Submit the lines; those whose answers are cut last stay in `_again`."""
        async for result in self._client.as_completed(self._requests(), window=window):
            appended, has_failed = self._add_row(
                result_row(result), has_failed=not result.is_success
            )
            self._unfinished.discard(result.id)
            if appended and appended.again:
                self._cut.add(result.id)
                self._tally.add_tokens(result)
                self._again.append(partial(appended.again, await self._model_length(result)))
                continue
            num_copies = appended.num_copies if appended else 0
            self._tally.add(result, has_failed=has_failed, num_copies=num_copies)
            self._cut.discard(first_id(result.id))
            await self._forget_written(*{result.id, first_id(result.id)})

    async def _model_length(self, result: Result) -> int:
        """Return the prompt and output tokens that the model of a result can have; 0 if no worker says."""
        lengths = (await self._fleet.fleet()).max_model_len
        return lengths.get(str(mapping(result.body).get("model")), 0)

    async def _forget_written(self, *ids: str) -> None:
        """Delete results whose rows are safe, many at a time; without ids, all that are left.

        Args:
            *ids: The ids of a line, two at most.
        """
        if self._sync is None:
            return
        self._written += ids
        if len(self._written) + 2 > IDS_A_CALL or not ids:
            self._sync()
            await retrying(lambda: self._client.queue.forget(self._written))
            self._written = []

    def _requests(self) -> Iterator[Request]:
        for entry in self._next_entries():
            if isinstance(entry, BadLine):
                self._add_row(bad_line_row(self._run, entry), has_failed=True)
                self._tally.add_bad_line()
            elif isinstance(entry, SkippedRow):
                self._write(skipped_row(self._run, entry))
                self._tally.add_without_run(1, has_failed=False)
            else:
                self._unfinished.add(entry.id)
                self._batch = entry.batch
                yield entry

    def _next_entries(self) -> Iterator[Request | BadLine | SkippedRow]:
        """Yield the lines that were cut so far before each further line, and at the end."""
        for entry in chain((each for _, each in self._entries), [None]):
            while self._again:
                yield self._again.popleft()()
            if entry is not None:
                yield entry

    def _add_row(self, row: bytes, *, has_failed: bool) -> tuple[Appended | None, bool]:
        """Write a row; return what became of it, and whether the line has failed.

        Args:
            row: The row.
            has_failed: True if the line has failed; the output may know better.
        """
        appended = self._write(row)
        if appended:
            has_failed = appended.failure is not None
            if appended.num_copies:
                self._tally.add_without_run(appended.num_copies, has_failed=has_failed)
        if has_failed and not self._tally.example:
            told = appended.failure if appended else None
            self._tally.example = told or failure_of_line(orjson.loads(row), self._run, self._noun)
        return appended, has_failed

    @asynccontextmanager
    async def _watched(self, shown: Display) -> AsyncIterator[None]:
        watcher = asyncio.create_task(self._watch(shown))
        try:
            yield
        finally:
            await end(watcher)

    async def _watch(self, shown: Display) -> None:
        queue, next_show_s, num_seen = self._client.queue, 0.0, 0
        hold_ups = HoldUps(queue.keys.queue, self._workers_log)
        while True:
            start_s = time.monotonic()
            stats = await retrying(queue.stats)
            hold_ups.tell(stats, self._batch)
            if (
                self._tally.num_finished == num_seen
            ):  # a look at each worker only when nothing moves
                brakes = await retrying(
                    partial(read_brakes, queue.redis, queue.keys, stats.workers)
                )
                hold_ups.tell_brakes(stats.workers, brakes)
            num_seen = self._tally.num_finished
            self._tally.sample(time.monotonic(), is_served=hold_ups.is_served)
            if start_s >= next_show_s:
                next_show_s = start_s + shown.interval_s
                shown.show(self._tally.progress(await self._states(stats.workers)))
            cost_s = time.monotonic() - start_s
            pause_s = min(shown.interval_s, LOOK_S)
            await asyncio.sleep(max(pause_s, cost_s / MAX_SHARE_OF_STATUS))

    async def _states(self, workers: Mapping[str, int]) -> Counter[str]:
        """Count the unfinished requests of this run by state, without those of other runs.

        Args:
            workers: Worker -> milliseconds left of its lease. Requests of a worker whose lease has
                ended count as `orphaned`.
        """
        states = await self._client.status(list(self._unfinished))
        return Counter(
            "orphaned" if state == "running" and workers.get(worker, 1) <= 0 else state
            for state, worker in states
        )


async def submit_only(client: Client, batch_input: RunInput, total: int) -> int:
    """Submit every good line without waiting for results, and return the number of requests.

    Args:
        client: Client of the queue that gets the requests.
        batch_input: Input whose `check` was called.
        total: Lines of the input, for the display.
    """
    num_submitted = 0
    requests = (entry for _, entry in batch_input.entries() if isinstance(entry, Request))
    async with client.submitting():
        with display() as shown:
            next_s = time.monotonic() + shown.interval_s
            while chunk := list(islice(requests, CHUNK)):
                num_submitted += len(await client.submit_many(chunk))
                if time.monotonic() >= next_s:
                    parts = (f"{num_submitted:,}/{total:,} submitted",)
                    shown.show(RunProgress(num_submitted, total, parts))
                    next_s = time.monotonic() + shown.interval_s
    return num_submitted

"""One call of `map_table`: check the rows, run their requests, and give the answers back as columns.

`connect`, `collect` and `aclose` run on the loop of a `LoopThread`, so a call works in a notebook, whose own loop runs
already. `check` and `result` compute for long, and run in another thread.
"""

import asyncio
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from redis.exceptions import RedisError
from ulid import ULID

from gristmill.producer.batches.rows import LineReader
from gristmill.producer.client import Client
from gristmill.producer.commands.collect import Collection
from gristmill.producer.commands.run_workers import unless_lost
from gristmill.producer.commands.tally import Tally
from gristmill.producer.frames.called_requests import CalledRequests
from gristmill.producer.frames.frame_kinds import frame_of
from gristmill.producer.frames.frame_options import FrameOptions
from gristmill.producer.tables.answer_columns import AnswerColumns
from gristmill.producer.tables.answer_parts import AnswerParts
from gristmill.producer.tables.memory_table import MemoryTable
from gristmill.producer.tables.request_maker import RequestMaker
from gristmill.producer.tables.row_answers import RowAnswers
from gristmill.producer.tables.second_asking import SecondAskings
from gristmill.producer.tables.structured_answers import StructuredAnswers
from gristmill.producer.tables.table import AnyTable
from gristmill.producer.tables.table_input import TableInput
from gristmill.shared.errors import NotServed
from gristmill.shared.fleet import Fleet
from gristmill.shared.fleet_cache import read_fleet
from gristmill.shared.redis_retry import retrying
from gristmill.shared.tasks import end

ABANDON_S = 5.0
"""Longest time, in seconds, to cancel the requests of a call that failed. Redis may be what failed."""


class FrameRun:
    """A table of the caller and its requests. Call the methods in their order, and `aclose` in any case.

    Args:
        data: The table.
        options: The keywords of the call.

    Raises:
        InvalidRequest: It is no table, a column is missing, or an added column is there already.
    """

    def __init__(self, data: Any, options: FrameOptions) -> None:
        spec = self._spec = options.spec
        self._options = options
        self._frame = frame_of(data)
        self._table = MemoryTable(self._frame.arrow)
        structured = StructuredAnswers(spec.schema, "parquet") if spec.schema else None
        self._columns = AnswerColumns(spec.rename, self._table.columns, structured)
        self._maker: RequestMaker | CalledRequests
        if spec.request is not None:
            self._maker = CalledRequests(spec)
        else:
            self._maker = RequestMaker(spec)
            self._maker.check_columns(self._table)
        self._run = str(ULID())
        self._client = Client(options.settings, is_quiet=options.has_progress)
        self._fleet: Fleet | None = None
        self._stack = ExitStack()
        self._parts: AnswerParts | None = None
        self._collection: Collection | None = None
        self._work: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Make sure that Redis answers and that workers serve the model, if there are workers.

        Raises:
            RedisUnreachable, SettingsError: See `Client`.
            NotServed: No worker serves the model or the endpoint.
        """
        await self._client.status([])
        if not self._options.settings.check_models:
            return
        self._fleet = await retrying(lambda: read_fleet(self._client.queue))
        if self._spec.request is None:
            refusal = self._fleet.refusal(self._options.sample())
            if refusal is not None:
                raise NotServed(refusal.reason, refusal.code)

    def check(self) -> None:
        """Make the requests of all rows once, to find the copies, and to fail before anything is submitted.

        Raises:
            InvalidRequest: Python cannot read a value, or a function did not return a request.
            GristmillError: The temporary folder is full.
            Exception: A function of the caller raised it.
        """
        folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="gristmill-")))
        reader = LineReader(
            self._run,
            max_request_bytes=self._options.settings.max_request_bytes,
            defaults=self._options.fields,
            fleet=self._fleet,
        )
        second = self._second_askings(reader)
        rows = self._rows(folder, reader, second)
        self._stack.callback(rows.close)
        num_rows = rows.check().num_lines
        self._parts = AnswerParts(folder, self._columns.schema, num_rows)
        self._stack.callback(self._parts.close)
        answers = RowAnswers(self._run, self._columns, self._parts, plan=rows.plan, second=second)
        self._collection = Collection(
            self._client,
            batch_input=rows,
            run=self._run,
            write=answers.append,
            tally=Tally(num_rows, time.monotonic()),
            noun="row",
            sync=lambda: None,  # no answer has to survive this process
            is_shown=self._options.has_progress,
        )

    async def collect(self) -> None:
        """Run the requests.

        Raises:
            GristmillError: See `Client.as_completed`; also if the caller's engine has ended.
        """
        if self._collection is None:
            raise RuntimeError("call check first")
        work = self._collection.run(self._options.window)
        self._work = asyncio.create_task(unless_lost(work, self._options.lost))
        await asyncio.shield(self._work)

    def result(self) -> Any:
        """Return the caller's table with the columns of the answers."""
        if self._parts is None:
            raise RuntimeError("call check and collect first")
        schema = self._columns.schema
        batches = [
            pa.RecordBatch.from_arrays(batch.columns, schema=schema)
            for batch in self._parts.batches()
        ]
        return self._frame.with_columns(pa.Table.from_batches(batches, schema).combine_chunks())

    async def aclose(self) -> None:
        """End the run; cancel requests that have not finished, and delete their results."""
        await end(self._work)
        if self._collection is not None:
            with suppress(TimeoutError, RedisError, OSError):
                async with asyncio.timeout(ABANDON_S):
                    await self._collection.abandon()
        await self._client.aclose()
        self._stack.close()

    def _rows(self, folder: Path, reader: LineReader, second: SecondAskings | None) -> TableInput:
        table: AnyTable = self._table
        if isinstance(self._maker, CalledRequests):
            table = self._maker.table(table, folder / "lines.arrow")
        return TableInput(
            table,
            self._maker,
            reader,
            folder / "plan.sqlite",
            skips_null=self._spec.skip_null or self._spec.request is not None,
            skip_option="skip_null=True",
            second=second,
        )

    def _second_askings(self, reader: LineReader) -> SecondAskings | None:
        """Return what asks a row again whose answer was cut. A function may set a limit for each row."""
        limit = self._spec.limit
        if self._spec.schema is None or self._spec.request is not None or limit is None:
            return None
        second = SecondAskings(reader, self._spec.endpoint, limit)
        return self._stack.enter_context(closing(second))

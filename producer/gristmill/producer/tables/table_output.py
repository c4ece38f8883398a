"""The output of one run of a table. It has the methods of `OutputFile`, which is the one of JSONL lines.

`TableInput` needs its `plan_path`, `use_plan`, `use_second` and `trial`, too.

Beside the output OUT, `OUT.run` says to which run it belongs, as for lines. `OUT.parts` has the plan and
the answers until the rows are merged into OUT.
"""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, Self

from gristmill.producer.batches.submit_run import (
    Appended,
    RunRecord,
    WrittenRows,
    earlier_run,
    lock_beside,
)
from gristmill.producer.tables.answer_columns import AnswerColumns
from gristmill.producer.tables.answer_parts import AnswerParts
from gristmill.producer.tables.output_trial import OutputTrial
from gristmill.producer.tables.row_answers import RowAnswers
from gristmill.producer.tables.row_plan import RowPlan
from gristmill.producer.tables.second_asking import SecondAskings
from gristmill.producer.tables.table import Table
from gristmill.producer.tables.table_writers import output_kind, table_writer
from gristmill.shared.errors import InvalidRequest

PLAN, NEW_PLAN = "plan.sqlite", "plan.new.sqlite"
"""Names of the plan in the folder of parts: of the run, and of one that has not begun."""

_KEPT = (NEW_PLAN, "lock")
"""Files that stay when a new run begins."""


class TableOutput:
    """An output, locked so that only this process writes it.

    Args:
        path: Path of the output; its extension tells the format.
        table: The input.
        columns: The added columns.

    Attributes:
        keeps_results: False: Redis need not keep the results of written rows.

    Raises:
        InvalidRequest: Another process writes it, or its folder cannot be written.
    """

    keeps_results = False

    def __init__(self, path: Path, table: Table, columns: AnswerColumns) -> None:
        self._path = path
        self._kind = output_kind(path)
        self._table = table
        self._columns = columns
        self._folder = path.with_name(path.name + ".parts")
        self._lock: FileIO = lock_beside(self._folder, path)
        names = [each.name for each in self._folder.iterdir()]
        self._is_own = all(name == "lock" or name.startswith(NEW_PLAN) for name in names)
        self._run: RunRecord | None = None
        self._plan: RowPlan | None = None
        self._second: SecondAskings | None = None
        self._answers: RowAnswers | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._answers:
            self._answers.parts.close()
        (self._folder / NEW_PLAN).unlink(missing_ok=True)
        has_no_run = not RunRecord.beside(self._path).is_file()
        if self._is_done() or (has_no_run and self._is_own):
            shutil.rmtree(self._folder, ignore_errors=True)
        self._lock.close()

    def plan_path(self, *, is_new: bool) -> Path:
        """Return the path of the plan of the rows.

        Args:
            is_new: True for a run that has not begun; until then the plan of an earlier run stays.
        """
        return self._folder / (NEW_PLAN if is_new else PLAN)

    def trial(self) -> OutputTrial:
        """Return what tries the rows of the input on the format of this output."""
        return OutputTrial(self._kind, self._table, self._columns.schema)

    def begun_run(self, *, is_forced: bool) -> RunRecord | None:
        """Return the run to which this output belongs, finished or not; None to begin a new one.

        Args:
            is_forced: Begin a new run even if there is an output.

        Raises:
            InvalidRequest: The output, or its folder of parts, exists and belongs to no run.
        """
        earlier = earlier_run(self._path, is_forced=is_forced)
        if earlier is None and not self._is_own and not is_forced:
            raise InvalidRequest(
                f"{self._folder} has files, and {RunRecord.beside(self._path)}, which says of which run, is not there;"
                " put it back, move the folder away, or delete what is in it with --force"
            )
        if earlier and earlier.finished and not self._path.is_file():
            raise InvalidRequest(
                f"run {earlier.run} has written {self._path}, which is gone; put it back, or run all rows again with"
                " --force"
            )
        self._run = earlier
        return earlier

    def begin(self, run: RunRecord) -> None:
        """Drop the parts of an earlier run, and write the record of a new one."""
        for path in self._folder.iterdir():
            if path.name not in _KEPT:
                path.unlink()
        self._is_own = True
        self._path.unlink(missing_ok=True)
        (self._folder / NEW_PLAN).rename(self._folder / PLAN)
        run.write(self._path)
        self._run = run

    def forget_run(self) -> None:
        """Delete the record of a run that has no answers, so that nothing of the run is left."""
        if not any(self._folder.glob("*.jsonl")) and not any(self._folder.glob("*.parquet")):
            RunRecord.beside(self._path).unlink(missing_ok=True)

    def use_plan(self, plan: RowPlan) -> None:
        """Give the copies of a row its answer."""
        self._plan = plan

    def use_second(self, second: SecondAskings) -> None:
        """Ask rows again whose answer was cut."""
        self._second = second

    def keep_whole_rows(self, run: str, num_lines: int) -> WrittenRows:
        """Return the rows that an interrupted run has finished; cut off what it has half written.

        Args:
            run: Name of the run.
            num_lines: Rows of the table.

        Raises:
            InvalidRequest: A part is damaged.
        """
        parts = AnswerParts(self._folder, self._columns.schema, num_lines)
        self._answers = RowAnswers(run, self._columns, parts, plan=self._plan, second=self._second)
        return parts.restore()

    def append(self, row: bytes) -> Appended:
        """Write the answer that a row in OpenAI's format has, also for its copies.

        A cut answer is not written if a second one may be longer; the returned value has its request.
        """
        return self._started()[0].append(row)

    def sync(self) -> None:
        """Make the answers so far survive a power cut."""
        self._started()[0].parts.sync()

    def finish(self, totals: Mapping[str, Any]) -> None:
        """Merge the rows of the input with their answers into the output.

        Args:
            totals: Counts of the run, which its record keeps.

        Raises:
            InvalidRequest: The input was written during the run, or a part is damaged.
        """
        kept, run = self._started()
        kept.parts.close()
        self._table.check_unchanged()
        draft = self._folder / f"merged.{self._kind}"
        with draft.open("wb") as file:
            writer = table_writer(self._kind, file, self._table, self._columns.schema)
            answers = _Taken(kept.parts, self._table.name)
            for chunk in self._table.chunks():
                low = 0
                while low < len(chunk):
                    batch = answers.take(len(chunk) - low)
                    writer.write(chunk.rows.slice(low, low + batch.num_rows), batch)
                    low += batch.num_rows
            answers.check_all_taken()
            writer.close()
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
        replace(run, finished=totals).write(self._path)

    def _started(self) -> tuple[RowAnswers, RunRecord]:
        if self._answers is None or self._run is None:
            raise RuntimeError("call begin or begun_run, then keep_whole_rows")
        return self._answers, self._run

    def _is_done(self) -> bool:
        with suppress(InvalidRequest):
            record = RunRecord.read(self._path)
            return record is not None and record.finished is not None
        return False


class _Taken:
    """Takes the values of rows from parts, a few rows at a time."""

    def __init__(self, parts: AnswerParts, input_name: str) -> None:
        self._input_name = input_name
        self._batches = parts.batches()
        self._left: Any = None

    def take(self, most: int) -> Any:
        """Return the values of the next rows, at least one row.

        Raises:
            InvalidRequest: The input has more rows than the parts.
        """
        if not self._has_more():
            raise self._changed("more")
        taken = self._left.slice(0, most)
        self._left = self._left.slice(taken.num_rows)
        return taken

    def check_all_taken(self) -> None:
        """Refuse an input that has fewer rows than the parts.

        Raises:
            InvalidRequest: It has fewer.
        """
        if self._has_more():
            raise self._changed("fewer")

    def _has_more(self) -> bool:
        if self._left is None or not self._left.num_rows:
            self._left = next(self._batches, None)
        return self._left is not None

    def _changed(self, how: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self._input_name} has {how} rows than when the run began; put the earlier input back and repeat the"
            " command: all answers so far are kept"
        )

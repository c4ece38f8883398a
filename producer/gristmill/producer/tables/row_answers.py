"""Take the rows of a run as its requests end, and keep the values of their columns, also for the copies."""

from functools import partial

import orjson

from gristmill.producer.batches.rows import first_id, line_number
from gristmill.producer.batches.submit_run import Appended
from gristmill.producer.tables.answer_columns import AnswerColumns
from gristmill.producer.tables.answer_parts import AnswerParts
from gristmill.producer.tables.row_plan import RowPlan
from gristmill.producer.tables.second_asking import SecondAskings


class RowAnswers:
    """The answers of one run.

    Args:
        run: Name of the run.
        columns: The added columns.
        parts: Keeps the values.
        plan: Tells which rows are copies; None if there are no copies.
        second: Asks rows again whose answer was cut; None to leave them cut.

    Attributes:
        parts: Keeps the values.
    """

    def __init__(
        self,
        run: str,
        columns: AnswerColumns,
        parts: AnswerParts,
        *,
        plan: RowPlan | None,
        second: SecondAskings | None,
    ) -> None:
        self._run = run
        self._columns = columns
        self.parts = parts
        self._plan = plan
        self._second = second

    def append(self, row: bytes) -> Appended:
        """Write the answer that a row in OpenAI's format has, also for its copies.

        A cut answer is not written if a second one may be longer; the returned value has its request.
        """
        fields = orjson.loads(row)
        number = line_number(fields, self._run)
        answer = self._columns.read(fields)
        is_first = first_id(fields["id"]) == fields["id"]
        if (
            self._second
            and answer.is_cut
            and is_first
            and self._second.can_help(answer.output_tokens)
        ):
            return Appended(again=partial(self._second.request, number))
        copies = self._unfinished_copies(number)
        if copies:  # before the row itself: once it has its values, all its copies have theirs
            self.parts.add(dict.fromkeys(copies, answer.values))
        self.parts.add({number: answer.values})
        if self._second:
            self._second.drop(number)
        return Appended(len(copies), answer.error and f"row {number:,}: {answer.error}")

    def _unfinished_copies(self, number: int) -> list[int]:
        copies = self._plan.copies_of(number) if self._plan else []
        return [copy for copy in copies if not self.parts.is_finished(copy)]

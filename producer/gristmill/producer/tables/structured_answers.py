"""Turn the text of an answer into the columns of a schema, or say why it does not fit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from gristmill.producer.tables.answer_json import json_object_in
from gristmill.producer.tables.answer_schema import AnswerSchema
from gristmill.producer.tables.schema_types import JSON_TEXT, ColumnType, Scalar, column_types
from gristmill.shared.one_line import one_line

CUT_ANSWER = "cut_answer"
"""Code of an answer that reached its limit of tokens before its JSON ended."""

NO_JSON = "no_json"
"""Code of an answer that has no JSON object."""

SCHEMA_MISMATCH = "schema_mismatch"
"""Code of an answer whose JSON the schema does not take."""

HOLDS_JSON = {b"gristmill": b"json"}
"""Metadata of a column that holds JSON, which an output of JSONL writes as it is."""

MAX_PROBLEM = 300
"""Most characters of what a validator says; it may repeat the answer."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The values that the text of an answer gives.

    Attributes:
        values: A value for each column of the schema; empty if the text does not fit.
        code: Why the text does not fit; "" if it does.
        reason: The same in words, with the remedy.
    """

    values: Sequence[Any] = field(default=())
    code: str = ""
    reason: str = ""


class StructuredAnswers:
    """The columns of one schema.

    Args:
        schema: The form that each answer must have.
        kind: Format of the output: parquet, csv or jsonl. Parquet gets all types. CSV has a text of JSON for a list
            or a record, and JSONL has all values as they are.

    Attributes:
        columns: Arrow fields of the properties, in their order.
    """

    def __init__(self, schema: AnswerSchema, kind: str) -> None:
        self._schema = schema
        self._validator = schema.validator()
        self._kinds = {
            name: _as_written(each, kind) for name, each in column_types(schema.document).items()
        }
        marks = HOLDS_JSON if kind == "jsonl" else None
        self.columns = [
            pa.field(name, each.arrow, metadata=marks) for name, each in self._kinds.items()
        ]

    def read(self, text: str | None, *, output_tokens: int, is_cut: bool) -> Fields:
        """Return what a text gives.

        Args:
            text: The answer; None if it has none, such as a call of a tool.
            output_tokens: Its tokens.
            is_cut: True if it ended at its limit.
        """
        answer = json_object_in(text or "", is_cut=is_cut)
        if answer is None and is_cut:
            reason = f"the JSON had no end after {output_tokens:,} tokens; raise max_tokens"
            return Fields(code=CUT_ANSWER, reason=reason)
        if answer is None:
            reason = "the answer has no JSON object; say in the prompt what to answer"
            return Fields(code=NO_JSON, reason=reason)
        problem = self._problem(answer) or self._schema.problem(answer)
        if problem is not None:
            return Fields(code=SCHEMA_MISMATCH, reason=one_line(problem, MAX_PROBLEM))
        try:
            return Fields([each.value(answer.get(name)) for name, each in self._kinds.items()])
        except ValueError as error:
            return Fields(code=SCHEMA_MISMATCH, reason=str(error))

    def _problem(self, answer: dict[str, Any]) -> str | None:
        if self._validator.is_valid(answer):
            return None
        error = next(self._validator.iter_errors(answer))
        return f"{'.'.join(map(str, error.instance_path)) or 'the answer'}: {error.message}"


def _as_written(column: ColumnType, kind: str) -> ColumnType:
    """Return the type that a column has in an output."""
    if kind == "parquet" or (kind == "csv" and isinstance(column, Scalar)):
        return column
    return JSON_TEXT

"""Turn the answer to a request into columns. Nothing else in this package knows what an answer is."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import orjson
import pyarrow as pa

from gristmill.producer.batches.rows import is_success
from gristmill.producer.tables.structured_answers import (
    CUT_ANSWER,
    HOLDS_JSON,
    StructuredAnswers,
)
from gristmill.shared.answers import (
    CUT,
    answer_text,
    code_in,
    finish_reason,
    message_in,
    token_counts,
)
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import one_line, shown

MAX_ERROR = 1_000
"""Most characters of an error in its column."""

ERROR = "error"
"""The column of errors, the last one; a row without an answer has its cause there."""

ADDED = (
    ("answer", pa.string()),
    ("prompt_tokens", pa.int64()),
    ("output_tokens", pa.int64()),
    ("finish_reason", pa.string()),
    (ERROR, pa.string()),
)
"""Columns that every output gets, and their types, in their order."""


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """The values of one row in the added columns.

    Attributes:
        values: Values of the added columns, in the order of the schema.
        error: The cause in the column of errors; None for none.
        is_cut: True if the answer has no whole JSON because it reached its limit of tokens.
        output_tokens: Tokens of the answer.
    """

    values: list[Any]
    error: str | None = None
    is_cut: bool = False
    output_tokens: int = 0


class AnswerColumns:
    """The added columns of one output: those of a schema, then those that every output gets.

    Args:
        rename: Added column -> the name that it gets. A name that both kinds have means the second kind.
        taken: Columns of the input.
        structured: The columns of a schema; None without one.

    Attributes:
        schema: The added columns under their names in the output.

    Raises:
        InvalidRequest: A name is not an added column's, or two columns have the same name.
    """

    def __init__(
        self,
        rename: Mapping[str, str],
        taken: Sequence[str],
        structured: StructuredAnswers | None = None,
    ) -> None:
        self._structured = structured
        fixed = [pa.field(name, kind) for name, kind in ADDED]
        fixed_names = [each.name for each in fixed]
        own = structured.columns if structured else []
        self._num_own = len(own)
        own_names = [each.name for each in own if each.name not in fixed_names]
        _check_known(rename, [*own_names, *fixed_names])
        renamed = [each if each.name in fixed_names else _renamed(each, rename) for each in own]
        self.schema = pa.schema([*renamed, *(_renamed(each, rename) for each in fixed)])
        added = [each.name for each in (*own, *fixed)]
        _check_once(added, self.schema.names)
        _check_free(added, self.schema.names, taken)

    def read(self, row: Mapping[str, Any]) -> RowAnswer:
        """Return what the columns of a row get.

        Args:
            row: A parsed row in the format of OpenAI's batch output. A row with neither response nor
                error was left unanswered.
        """
        error = failure(row)
        if error is not None or row["response"] is None:
            return RowAnswer([*[None] * (self._num_own + 4), error], error)
        body = row["response"]["body"]
        text, tokens = answer_text(body), token_counts(body)
        reason = finish_reason(body)
        common = [text, *tokens, reason]
        if self._structured is None:
            return RowAnswer([*common, None])
        fields = self._structured.read(text, output_tokens=tokens[1], is_cut=reason == CUT)
        if fields.code:
            error = one_line(f"{fields.code}: {fields.reason}", MAX_ERROR)
            values = [*[None] * self._num_own, *common, error]
            return RowAnswer(values, error, fields.code == CUT_ANSWER, tokens[1])
        return RowAnswer([*fields.values, *common, None])

    def shown(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Return what people want to see of a row: the fields of the schema or else the answer, and the error.

        Args:
            row: A parsed row, see `read`.
        """
        answer = self.read(row)
        if answer.error is not None:
            return {}, answer.error
        columns = list(self.schema)[: self._num_own or 1]
        pairs = zip(columns, answer.values, strict=False)
        return {column.name: _unwrapped(column, value) for column, value in pairs}, None


def _unwrapped(column: Any, value: Any) -> Any:
    holds_json = value is not None and column.metadata == HOLDS_JSON
    return orjson.loads(value) if holds_json else value


def _renamed(column: Any, rename: Mapping[str, str]) -> Any:
    return column.with_name(rename.get(column.name, column.name))


def _check_known(rename: Mapping[str, str], names: Sequence[str]) -> None:
    if unknown := [name for name in rename if name not in names]:
        raise InvalidRequest(
            f"--rename {unknown[0]}=...: no added column has this name; use {', '.join(names)}"
        )


def _check_once(added: Sequence[str], names: Sequence[str]) -> None:
    """Refuse two added columns of one name."""
    for old, name in zip(added, names, strict=True):
        if names.count(name) > 1:
            raise InvalidRequest(
                f"two added columns would be {name!r}; give one another name, for example --rename {old}={name}_2"
            )


def _check_free(added: Sequence[str], names: Sequence[str], taken: Sequence[str]) -> None:
    """Refuse names of added columns that the input has, all at once."""
    renames = {old: name for old, name in zip(added, names, strict=True) if name in taken}
    if not renames:
        return
    used = {*names, *taken}
    options = " ".join(f"--rename {old}={_free(name, used)}" for old, name in renames.items())
    columns = ", ".join(map(repr, renames.values()))
    is_one = len(renames) == 1
    what = "a column" if is_one else "columns"
    remedy = "give the new one another name" if is_one else "give the new ones other names"
    raise InvalidRequest(
        f"the input has {what} {columns}, as the output would; {remedy}: {options}"
    )


def _free(name: str, used: Collection[str]) -> str:
    """Return a name with the lowest number, from 2, that no column has."""
    return next(new for number in count(2) if (new := f"{name}_{number}") not in used)


def failure(row: Mapping[str, Any]) -> str | None:
    """Return why a parsed row has no answer, as code and text; None if it has one, or was left unanswered."""
    response, error = row["response"], row["error"]
    if (response is None and error is None) or is_success(dict(row)):
        return None
    if response is None:
        return one_line(f"{error['code']}: {error.get('message', '')}", MAX_ERROR)
    body = response["body"]
    code = code_in(body) or f"HTTP {response['status_code']}"
    text = message_in(body)
    return one_line(f"{code}: {text if isinstance(text, str) else shown(text)}", MAX_ERROR)

"""Turn the answer to a request into columns. Nothing else in this package knows what an answer is."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from gristmill.producer.batches.rows import is_success
from gristmill.shared.answers import (
    answer_text,
    code_in,
    list_in,
    mapping,
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
"""Added columns and their types, in their order."""


class AnswerColumns:
    """The added columns of one output.

    Args:
        rename: Added column -> the name that it gets.
        taken: Columns of the input.

    Attributes:
        schema: The added columns under their names in the output.

    Raises:
        InvalidRequest: A name is not an added column's, or two columns have the same name.
    """

    def __init__(self, rename: Mapping[str, str], taken: Sequence[str]) -> None:
        names = [name for name, _ in ADDED]
        if unknown := [name for name in rename if name not in names]:
            raise InvalidRequest(
                f"--rename {unknown[0]}=...: no added column has this name; use {', '.join(names)}"
            )
        self.schema = pa.schema([(rename.get(name, name), kind) for name, kind in ADDED])
        for added, name in zip(names, self.schema.names, strict=True):
            if name in taken:
                raise InvalidRequest(
                    f"the input has a column {name!r}, as the output would; give the new one another name:"
                    f" --rename {added}={name}_2"
                )
            if self.schema.names.count(name) > 1:
                raise InvalidRequest(f"two added columns would be {name!r}; correct --rename")

    def values(self, row: Mapping[str, Any]) -> list[Any]:
        """Return the values of the added columns, in the order of the schema.

        Args:
            row: A parsed row in the format of OpenAI's batch output. A row with neither response nor
                error was left unanswered.
        """
        error = failure(row)
        if error is not None or row["response"] is None:
            return [None, None, None, None, error]
        body = row["response"]["body"]
        choices = list_in(mapping(body).get("choices"))
        reason = mapping(choices[0]).get("finish_reason") if choices else None
        return [
            answer_text(body),
            *token_counts(body),
            reason if isinstance(reason, str) else None,
            None,
        ]


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

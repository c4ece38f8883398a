"""The rows of an output file, in the format of OpenAI's batch output."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from gristmill.producer.batches.rows.custom_ids import names_of
from gristmill.producer.batches.rows.lines import BadLine, SkippedRow
from gristmill.shared.answers import code_in, message_in
from gristmill.shared.one_line import json_line, one_line
from gristmill.shared.results import Result

ID_PREFIX = "batch_req_"

_SECOND = re.compile(r"-again\d+$")
"""End of the id of a second request. The id of a line ends in its number, so no line has such an id."""

MAX_CAUSE = 200
"""Most characters of the cause of a failure in a line for people."""


PASSING_REFUSALS = frozenset({401, 403, 404, 408, 409, 425, 429})
"""4xx statuses that another time, another worker or another login may not give."""

PASSING_CODES = frozenset({"model_not_found", "endpoint_not_served", "duplicate_custom_id"})
"""Codes of bad lines that are right once a worker serves them, or in a file of their own."""


def result_row(result: Result) -> bytes:
    """Return the row of a result, with its line end.

    `response` is the engine's answer, which may be an HTTP error. Without an answer `response` is
    null, and `error` says why.
    """
    response: dict[str, Any] | None = None
    if result.status_code is not None:
        response = {
            "status_code": result.status_code,
            "request_id": result.id,
            "body": result.body,
        }
    custom_id, metadata = names_of(result)
    try:
        return _row(
            result.id, custom_id, response, result.error, metadata=metadata, made_by=result.made_by
        )
    except orjson.JSONEncodeError as error:  # orjson reads deeper nesting than it writes
        message = f"the answer cannot be written: {error}"
        return unanswered_row(result.id, custom_id, "unreadable", message, metadata)


def bad_line_row(run: str, line: BadLine) -> bytes:
    """Return the row of a bad line: the answer with status 400 that a server would give it."""
    request_id = f"{run}-{line.number}"
    error = {
        "message": str(line), "type": "invalid_request_error", "param": None, "code": line.code,
    }  # fmt: skip
    response = {"status_code": 400, "request_id": request_id, "body": {"error": error}}
    return _row(request_id, line.custom_id, response, None, metadata=line.metadata)


def skipped_row(run: str, row: SkippedRow) -> bytes:
    """Return the row of a table's row that was left unanswered: neither response nor error."""
    return _row(f"{run}-{row.number}", None, None, None, metadata=None)


def unanswered_row(
    request_id: str,
    custom_id: str | None,
    code: str,
    message: str,
    metadata: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the error row of a line that got no answer."""
    return _row(request_id, custom_id, None, {"code": code, "message": message}, metadata=metadata)


def _row(
    request_id: str,
    custom_id: str | None,
    response: dict[str, Any] | None,
    error: dict[str, Any] | None,
    *,
    metadata: Mapping[str, Any] | None,
    made_by: Mapping[str, Any] | None = None,
) -> bytes:
    """Return a row. OpenAI's rows lack `made_by` and `metadata`; a row has them only if they hold something."""
    fields: dict[str, Any] = {
        "id": ID_PREFIX + request_id,
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    if made_by:
        fields["made_by"] = made_by
    if metadata:
        with suppress(orjson.JSONEncodeError):  # nested too deeply for one level more
            return json_line(fields | {"metadata": metadata})
    return json_line(fields)


def is_success(row: dict[str, Any]) -> bool:
    """Return True if a parsed row has an answer of the engine and no error."""
    response = row["response"]
    return row["error"] is None and response is not None and response["status_code"] < 400


def is_hopeless(row: dict[str, Any]) -> bool:
    """Return True if the line of a parsed row can never succeed as it is: it was refused for what it says."""
    response = row["response"]
    if response is None or not 400 <= response["status_code"] < 500:
        return False
    code = code_in(response["body"])
    return response["status_code"] not in PASSING_REFUSALS and code not in PASSING_CODES


def failure_in_words(row: dict[str, Any]) -> str:
    """Return the cause of a parsed row that is no success, as one short line."""
    response, error = row["response"], row["error"]
    if response is None:
        cause = f"{error['code']}: {error.get('message', '')}" if error else "no answer"
        return one_line(cause, MAX_CAUSE)
    return one_line(f"HTTP {response['status_code']}: {message_in(response['body'])}", MAX_CAUSE)


def second_id(request_id: str, max_tokens: int) -> str:
    """Return the id of the request that asks a line once more, with another limit of tokens.

    The limit is a part of the id, because a request with another body needs another id.
    """
    return f"{request_id}-again{max_tokens}"


def first_id(request_id: str) -> str:
    """Return the id of the first request of a line, which may be this one."""
    return _SECOND.sub("", request_id)


def line_number(row: dict[str, Any], run: str) -> int:
    """Return the input line of a parsed row; its request may be the second one of the line.

    Raises:
        ValueError: The row belongs to another run, or is no row.
    """
    prefix = f"{ID_PREFIX}{run}-"
    row_id = row["id"]
    number = first_id(row_id).removeprefix(prefix) if isinstance(row_id, str) else ""
    if number == row_id or not number.isdecimal():
        raise ValueError(f"its id is {row_id!r}, not {prefix}<line>")
    return int(number)


def line_of_row(row: bytes, run: str) -> int:
    """Return the input line of a row, without parsing the row.

    Raises:
        ValueError: The row belongs to another run, or is no row.
    """
    prefix = b'{"id":"%s%s-' % (ID_PREFIX.encode(), run.encode())
    if not row.startswith(prefix):
        raise ValueError(f"it begins with {row[:80]!r}, not {prefix!r}")
    return int(row[len(prefix) : row.index(b'"', len(prefix))])

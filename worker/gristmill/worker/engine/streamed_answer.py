"""Take the events of one answer: pass them on, and keep the whole answer. Every transport calls this module.

A server may write an event in several ways: with comments, with other fields, on several `data:` lines. An event is passed
on as one `data:` line with the server's JSON; one of the Responses API has an `event:` line before it, as the server sent it.
Not passed on are:

- `data: [DONE]`, because the reader of the events adds it;
- an error, because the request then fails or is tried again;
- the end of an answer that the engine aborted, for the same reason;
- the usage, if the caller did not ask for it. The worker always asks, because it counts tokens.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import orjson

from gristmill.shared.answers import list_in, mapping
from gristmill.shared.lenient_body import fields_of
from gristmill.shared.request import RESPONSES
from gristmill.worker.engine.bodies import ABORTED, described
from gristmill.worker.engine.chunked_answer import ChunkedAnswer
from gristmill.worker.engine.interface import OnEvent, Response
from gristmill.worker.engine.refusals import error_response

MAX_STATUS = 599
"""Largest HTTP status of an error."""

_ENDS = ("response.completed", "response.incomplete", "response.failed")
"""Types of the last event of the Responses API, which carries the whole answer."""


def with_stream(body: bytes, options: Mapping[str, bool], endpoint: str) -> bytes:
    """Return the body with `stream: true` and `stream_options`; unchanged if it is no JSON object."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(fields, dict):
        return body
    fields["stream"] = True
    if options and endpoint != RESPONSES:
        fields["stream_options"] = dict(options)
    return json.dumps(fields).encode()


class StreamedAnswer:
    """One answer that comes as events.

    Args:
        endpoint: The path of the request.
        body: The request's body, with `stream: true`.
        on_event: Takes the events.

    Attributes:
        body: The body to send to the engine; it asks for the usage.
    """

    def __init__(self, endpoint: str, body: bytes, on_event: OnEvent) -> None:
        self._endpoint = endpoint
        self._on_event = on_event
        self._is_of_responses = endpoint == RESPONSES
        options = mapping(fields_of(body).get("stream_options"))
        self._shows_usage = bool(options.get("include_usage"))
        self.body = body
        if not self._shows_usage:
            self.body = with_stream(body, {"include_usage": True}, endpoint)
        self._unread = bytearray()
        self._is_after_cr = False
        self._chunks = ChunkedAnswer()
        self._whole: Mapping[str, Any] | None = None
        self._error: Mapping[str, Any] | None = None

    @property
    def num_bytes(self) -> int:
        """About how many bytes the answer has so far."""
        return self._chunks.num_bytes + len(self._unread)

    def feed(self, data: bytes) -> None:
        """Take bytes as they come; an event may come in several parts."""
        start = max(0, len(self._unread) - 1)  # the bytes before it end no block
        self._unread += self._with_newlines(data)
        end = self._unread.rfind(b"\n\n", start)
        if end < 0:
            return
        blocks = bytes(self._unread[:end]).split(b"\n\n")
        del self._unread[: end + 2]
        for block in blocks:
            self._take(block.removeprefix(BOM_UTF8))

    def response(self) -> Response:
        """Return the whole answer, or the error that ended it."""
        if self._error is not None:
            return _error_of(self._error)
        if self._whole is None and self._chunks.is_complete:
            self._whole = self._chunks.fields()
        if self._whole is None:
            message = "the stream of the answer ended before the answer did"
            return error_response(
                HTTPStatus.INTERNAL_SERVER_ERROR, message, "IncompleteStreamError"
            )
        return described(200, orjson.dumps(self._whole), self._whole)

    def _with_newlines(self, data: bytes) -> bytes:
        """Return bytes with the line ends LF, CR LF and CR as LF; a CR LF may come in two parts."""
        if self._is_after_cr and data:
            data = data.removeprefix(b"\n")
            self._is_after_cr = False
        if b"\r" not in data:
            return data
        self._is_after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take(self, block: bytes) -> None:
        data = b" ".join(_values(block, b"data"))
        if self._error is not None or not data or data == b"[DONE]":
            return
        try:
            fields = orjson.loads(data)
            if not isinstance(fields, dict):
                raise TypeError(f"it is {str(fields)[:50]}, not an object")  # noqa: TRY301  # one place ends the answer
            if self._is_error(fields):
                self._error = fields
            elif self._is_of_responses:
                self._take_of_responses(block, fields, data)
            else:
                self._chunks.add(fields)
                if self._is_for_caller(fields):
                    self._on_event(b"data: %s\n\n" % data)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            message = f"the server sent an event that is none of {self._endpoint}: {error}"
            self._error = {"error": {"message": message, "type": "InvalidStreamError"}}

    def _take_of_responses(self, block: bytes, fields: Mapping[str, Any], data: bytes) -> None:
        if fields.get("type") in _ENDS:
            self._whole = mapping(fields.get("response"))
        names = b"".join(b"event: %s\n" % name for name in _values(block, b"event"))
        self._on_event(b"%sdata: %s\n\n" % (names, data))

    def _is_error(self, fields: Mapping[str, Any]) -> bool:
        return bool(fields.get("error")) or fields.get("type") == "error"

    def _is_for_caller(self, chunk: Mapping[str, Any]) -> bool:
        choices = list_in(chunk.get("choices"))
        if not choices:
            return self._shows_usage
        return all(mapping(choice).get("finish_reason") != ABORTED for choice in choices)


def _values(block: bytes, name: bytes) -> Iterator[bytes]:
    """Yield the values of the lines of a block that have a name."""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == name and value:
            yield value.strip()


def _error_of(fields: Mapping[str, Any]) -> Response:
    """Return the answer for an error that came as an event; its code is the HTTP status of the same error."""
    error = fields.get("error") or fields
    code = mapping(error).get("code")
    is_status = isinstance(code, int) and HTTPStatus.BAD_REQUEST <= code <= MAX_STATUS
    status: Any = code if is_status else HTTPStatus.INTERNAL_SERVER_ERROR
    return Response(int(status), orjson.dumps({"error": error}))

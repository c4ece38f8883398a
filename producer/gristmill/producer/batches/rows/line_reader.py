"""Read the lines of one file as requests."""

from collections.abc import Mapping
from typing import Any

from gristmill.producer.batches.rows.custom_ids import bad_line, bad_request, unknown_fields_of
from gristmill.producer.batches.rows.lines import BadLine, Line
from gristmill.producer.highest_lane import check_priority
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.fleet import Fleet
from gristmill.shared.operations import max_element_bytes
from gristmill.shared.request import Priority, Request
from gristmill.shared.request_json import request_from_json


class LineReader:
    """Reads lines in any form that `request_from_json` takes.

    Args:
        run: Prefix of the ids. Line n becomes the request `<run>-<n>`, so a second pass gives the same ids.
        max_request_bytes: Most bytes of an accepted body.
        default_endpoint: Endpoint of lines that name none.
        defaults: Fields of `Request` for lines that do not set them.
        max_priority: Highest lane that a line may ask for; a line that asks for a higher one is bad.
        refuses_unknown: True makes a line with a field that the engine ignores a bad line.
        fleet: Models and endpoints of the workers; a line that asks for another is bad. None to skip this check.
    """

    def __init__(
        self,
        run: str,
        *,
        max_request_bytes: int,
        default_endpoint: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        max_priority: Priority = "high",
        refuses_unknown: bool = False,
        fleet: Fleet | None = None,
    ) -> None:
        self._run = run
        self._max_request_bytes = max_request_bytes
        self._default_endpoint = default_endpoint
        self._defaults = defaults or {}
        self._max_priority = max_priority
        self._refuses_unknown = refuses_unknown
        self._fleet = fleet

    @property
    def max_line_bytes(self) -> int:
        """Most bytes of a line that are read; a longer line cannot be a request."""
        return max_element_bytes(self._max_request_bytes)

    def read(self, line: Line) -> Request | BadLine:
        """Return the request of a line, with its custom_id in the metadata, or the line's error."""
        try:
            request = request_from_json(
                line.raw,
                max_request_bytes=self._max_request_bytes,
                line_id=f"{self._run}-{line.number}",
                default_endpoint=self._default_endpoint,
                defaults=self._defaults,
            )
            check_priority(request.priority, self._max_priority, request.tenant)
        except InvalidRequest as error:
            return bad_line(line, error.reason, error.code)
        if self._refuses_unknown and request.unknown_fields:
            return unknown_fields_of(line.number, request)
        if self._fleet and (refusal := self._fleet.refusal(request)):
            return bad_request(line.number, request, refusal.reason, refusal.code)
        return request

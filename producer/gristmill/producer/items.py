"""Read the items of a call: requests to submit, or ids of requests that were submitted."""

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

from gristmill.producer.arguments import kind_of, numbered, one_id
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.known_fields import unknown_in_words
from gristmill.shared.log import warn
from gristmill.shared.one_line import shown
from gristmill.shared.request import EXAMPLE, Request

T = TypeVar("T")

Body = Mapping[str, Any]
"""An OpenAI request, as JSON has it."""

Requests = Iterable[Request | Body] | AsyncIterable[Request | Body]
MAX_WARNINGS = 1_000
"""Warnings of a process that are remembered, so that each is given once."""

Ids = Iterable[str] | AsyncIterable[str]


def one_request(item: object, fields: Mapping[str, Any]) -> Request:
    """Return the request that one item stands for.

    Args:
        item: A `Request`, or the body of one.
        fields: Fields of `Request` that go with a body.

    Raises:
        InvalidRequest: The item is neither, it is a `Request` and there are fields, or a rule is broken.
    """
    if isinstance(item, Request):
        if fields:
            names = ", ".join(fields)
            raise InvalidRequest(
                f"{names} cannot be set here, because it is a Request already; set {names} in the Request",
                request_id=item.id,
            )
        return item
    if not isinstance(item, Mapping):
        raise InvalidRequest(f"a {kind_of(item)} is no request; use a dict such as {EXAMPLE}")
    if "id" in item:
        raise InvalidRequest(
            f"the body has an id ({shown(item['id'])}), which no engine reads; pass it as the request's:"
            " submit(body, id=...) or Request.from_body(body, id=...)"
        )
    request = Request.from_body(item, **fields)
    if request.unknown_fields:
        _warn_of_unknown_fields(request.endpoint, request.unknown_fields)
    return request


@lru_cache(maxsize=MAX_WARNINGS)
def _warn_of_unknown_fields(endpoint: str, names: tuple[str, ...]) -> None:
    """Warn of fields that the engine ignores, once for each set of them."""
    words = unknown_in_words(names, endpoint)
    message = f"a request for {endpoint}: {words}"
    warn("fields.ignored", message, endpoint=endpoint, fields=names)


class ItemReader:
    """Reads the items of one call, chunk by chunk; an error names the index of its item.

    Args:
        fields: Fields of `Request` that go with each body.
        may_be_ids: True if the call takes ids too. The first item decides: all are ids, or all are requests.

    Attributes:
        num_read: Items read so far, which is the index of the next one.
    """

    def __init__(self, fields: Mapping[str, Any], *, may_be_ids: bool = False) -> None:
        self._fields = fields
        self._read_request = partial(one_request, fields=fields)
        self._are_ids = None if may_be_ids else False
        self.num_read = 0

    def are_ids(self, items: Sequence[object]) -> bool:
        """Return whether the call is about ids; `items` are its next items."""
        if self._are_ids is None:
            self._are_ids = isinstance(items[0], str)
        return self._are_ids

    def read_ids(self, items: Sequence[object]) -> tuple[list[str], InvalidRequest | None]:
        """Return the next items as ids up to the first bad one, and the error of that one, or None.

        Raises:
            InvalidRequest: There are fields, which go with bodies only.
        """
        if self._fields:
            names = ", ".join(self._fields)
            raise InvalidRequest(
                f"{names} cannot be set for ids of requests that were submitted before"
            )
        return self._read(one_id, items)

    def read_requests(self, items: Sequence[object]) -> tuple[list[Request], InvalidRequest | None]:
        """Return the next items as requests up to the first bad one, and the error of that one, or None."""
        return self._read(self._read_request, items)

    def _read(
        self, read: Callable[[object], T], items: Sequence[object]
    ) -> tuple[list[T], InvalidRequest | None]:
        start = self.num_read
        self.num_read += len(items)
        good: list[T] = []
        for index, item in enumerate(items, start):
            try:
                good.append(read(item))
            except InvalidRequest as error:
                return good, numbered(index, error)
        return good, None

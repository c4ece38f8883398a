"""Check the arguments of a client and of its calls, so that a wrong one is an error in our words at the call."""

import math
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar

from gristmill.shared.errors import InvalidRequest, SettingsError
from gristmill.shared.names import NAME_RULE
from gristmill.shared.one_line import shown
from gristmill.shared.pauses import WHOLE_QUEUE, batch_scope
from gristmill.shared.queue import Queue
from gristmill.shared.request import FIELDS, Request, check_names, is_id
from gristmill.shared.settings import QueueSettings, read_settings

T = TypeVar("T")

FIELDS_OF_MANY = tuple(name for name in FIELDS if name != "id")
"""Keywords that may go with many bodies; an id names one request."""


def settings_of(settings: object, queue: object) -> QueueSettings:
    """Return the settings of a new client; None reads the environment.

    Raises:
        SettingsError: A setting of the environment is wrong, or the arguments are of another type.
    """
    if queue is not None and not isinstance(queue, Queue):
        raise SettingsError(
            f"queue is a {kind_of(queue)}; name a queue with QueueSettings(queue=...)"
        )
    if settings is None:
        return read_settings(QueueSettings)
    if isinstance(settings, QueueSettings):
        return settings
    raise SettingsError(
        f"settings is a {kind_of(settings)}; a client takes QueueSettings(redis_url=..., queue=...), or nothing"
        " to read the environment"
    )


def closed_client() -> InvalidRequest:
    """Return the error for a call of a client that is closed, or was closed while the call waited."""
    return InvalidRequest("the client is closed; open a new one, and close it after its last call")


def forked_client() -> InvalidRequest:
    """Return the error for a call in a fork of the process that opened the client."""
    return InvalidRequest(
        "the client was opened before a fork, and its connections belong to the parent process; open a client in"
        " each process"
    )


def check_window(window: object) -> None:
    """Check how many requests of a call may be unfinished at a time.

    Raises:
        InvalidRequest: It is no whole number from 1.
    """
    if isinstance(window, bool) or not isinstance(window, Integral) or window < 1:
        raise InvalidRequest(
            f"window is {shown(window)}; it is how many requests may be unfinished, a whole number from 1"
        )


def check_timeout_s(timeout_s: Any) -> None:
    """Check the longest wait of a call; a negative one has ended already.

    Raises:
        InvalidRequest: It is neither a number nor None.
    """
    if timeout_s is not None and not _is_seconds(timeout_s):
        raise InvalidRequest(
            f"timeout_s is {shown(timeout_s)}; it is a number of seconds, or None for no limit"
        )


def _is_seconds(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an int beyond the largest float
        return False


def check_call(
    call: str,
    items: object,
    fields: Iterable[str],
    own: Sequence[str] = (),
    *,
    takes_async: bool = True,
) -> None:
    """Check the arguments of a call that takes many items, before the first item is read.

    Args:
        call: Name of the method.
        items: The items of the call.
        fields: Keywords that go with each body.
        own: Keywords of the method itself, which a wrong keyword may have meant.
        takes_async: False refuses an asynchronous iterable, for a caller without an event loop.

    Raises:
        InvalidRequest: The items are no iterable of items, or a keyword is unknown.
    """
    if "id" in fields:
        raise InvalidRequest(
            f"id names one request, and {call} takes many; give each its own with Request.from_body(body, id=...)"
        )
    check_names(fields, (*own, *FIELDS_OF_MANY))
    if isinstance(items, AsyncIterable) and not takes_async:
        raise InvalidRequest(
            f"{call} of a SyncClient takes a list or another iterable, not an asynchronous one"
            f" ({kind_of(items)}); use Client, or a plain generator"
        )
    is_one = isinstance(items, str | bytes | Mapping | Request)
    if is_one or not isinstance(items, Iterable | AsyncIterable):
        raise InvalidRequest(f"{call} takes a list or another iterable, not a {kind_of(items)}")


def one_id(value: object) -> str:
    """Return an id.

    Raises:
        InvalidRequest: The value can be no id.
    """
    if isinstance(value, str) and is_id(value):
        return value
    what = shown(value) if isinstance(value, str) else f"a {kind_of(value)}"
    raise InvalidRequest(f"{what} is no id; an id is what submit returned")


def scope_of(batch: object) -> str:
    """Return the scope of a pause: that of a batch, or of the whole queue for "".

    A program whose batch is None by mistake must not stop the queue.

    Raises:
        InvalidRequest: The value can be no name of a batch.
    """
    if isinstance(batch, str) and batch == "":
        return WHOLE_QUEUE
    if isinstance(batch, str) and is_id(batch):
        return batch_scope(batch)
    raise InvalidRequest(
        f"batch {shown(batch)} is not allowed; use {NAME_RULE}, or leave it out for the whole queue"
    )


def many_ids(ids: object) -> Sequence[str]:
    """Return ids as a sequence.

    Raises:
        InvalidRequest: They are no iterable, or one of them can be no id.
    """
    if isinstance(ids, str | Mapping) or not isinstance(ids, Iterable):
        raise InvalidRequest(f"ids is a {kind_of(ids)}; use a list of ids, also for one id")
    return [_at(index, one_id, value, "ids") for index, value in enumerate(ids)]


def kind_of(value: object) -> str:
    """Return the name of a type; a message repeats no prompt."""
    return type(value).__name__


def _at(index: int, read: Callable[[object], T], item: object, of: str) -> T:
    """Read an item; an error names its index."""
    try:
        return read(item)
    except InvalidRequest as error:
        raise numbered(index, error, of) from None


def numbered(index: int, error: InvalidRequest, of: str = "items") -> InvalidRequest:
    """Return an error with the index of its item."""
    reason = f"{of}[{index}]: {error.reason}"
    return type(error)(reason, error.code, request_id=error.request_id)

"""Calls that create something: their Idempotency-Key, and whether a caller may repeat one that failed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import structlog
from fastapi import Header
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gristmill.producer.gateway.http_errors import NO_RETRY, ApiError, api_error
from gristmill.shared.errors import NotReplicated

log = structlog.get_logger()

IdempotencyKey = Annotated[
    str | None,
    Header(min_length=1, max_length=128, description="repeats with the same key create nothing"),
]
"""The header of a call, as an argument of a route."""


UNSURE = (RedisConnectionError, RedisTimeoutError, ConnectionError, NotReplicated)
"""Errors after which nobody knows whether Redis did what was asked. What it refuses is not done."""


@contextmanager
def creating(what: str, *, is_repeatable: bool) -> Iterator[None]:
    """Say `x-should-retry: false` if Redis failed while something was created, and a repeat would create another.

    Args:
        what: What may exist now, and how the caller finds out.
        is_repeatable: True if a repeat creates nothing twice, because the call has a key or an id.

    Raises:
        ApiError: 503, in place of the error of Redis.
    """
    try:
        yield
    except UNSURE as error:
        if is_repeatable:
            raise
        log.warning("call.not_served", error=repr(error)[:500])
        found = api_error(error)
        message = f"{found.message.partition(';')[0]}; {what}; send an Idempotency-Key, and a call can be repeated"
        raise ApiError(found.status, message, code=found.code, headers=NO_RETRY) from error

"""Read the replies of the server behind a URL, for `remote.py`."""

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, TypeGuard

import aiohttp
import orjson

from gristmill.shared.answers import mapping
from gristmill.shared.errors import EngineUnavailable
from gristmill.worker.engine.bodies import MAX_MODEL_CHARS
from gristmill.worker.engine.interface import Response
from gristmill.worker.engine.refusals import error_response

_REFUSED = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}

UNAVAILABLE = _REFUSED | {HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT}
"""Statuses with which a server, or a proxy before it, does not serve a request."""

MAX_DOCUMENT_BYTES = 4 * 2**20
"""Most bytes of a document that a server tells about itself; schemas of more bytes are not published either."""

MAX_RETRY_AFTER_S = 3600.0
"""Longest wait that a `Retry-After` may ask for, so that a wrong one hides no request for days."""


def unavailable(url: str, reply: aiohttp.ClientResponse, answer: bytes) -> EngineUnavailable:
    """Return the error for a reply with one of the statuses `UNAVAILABLE`."""
    return EngineUnavailable(
        f"{url} answered {reply.status}: {answer[:200].decode(errors='replace')}",
        is_refusal=reply.status in _REFUSED,
        retry_after_s=retry_after_s(reply.headers.get("retry-after", ""), datetime.now(UTC)),
    )


def no_http_status(url: str, status: int) -> Response:
    """Return the answer in the place of one whose status no answer can have, such as 600.

    The gateway could not send such a status on.
    """
    message = (
        f"{url} answered with status {status}, which ends no HTTP call; a status is 200 to 599; check that VLLM_URL is"
        " the address of the API"
    )
    return error_response(HTTPStatus.BAD_GATEWAY, message, "BadGatewayError")


def retry_after_s(value: str, now: datetime) -> float:
    """Return the seconds in a `Retry-After`, a number or a date (RFC 9110, section 10.2.3).

    Args:
        value: Value of the header; 0 s if it cannot be read.
        now: The present, to which a date is compared.
    """
    seconds = 0.0
    with contextlib.suppress(ValueError, TypeError):
        is_number = value.strip().isdecimal()
        seconds = float(value) if is_number else (_moment(value) - now).total_seconds()
    return min(max(0.0, seconds), MAX_RETRY_AFTER_S)


def _moment(date: str) -> datetime:
    moment = parsedate_to_datetime(date)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


async def at_most(reply: aiohttp.ClientResponse, num_bytes: int) -> bytes:
    """Return the first `num_bytes` of the answer, or all of a shorter one."""
    try:
        return await reply.content.readexactly(num_bytes)
    except asyncio.IncompleteReadError as error:
        return error.partial


async def json_object(reply: aiohttp.ClientResponse) -> Mapping[str, Any]:
    """Return the JSON object that a reply holds; an empty one if it holds something else.

    An object of more than `MAX_DOCUMENT_BYTES`, or of more levels than orjson writes (254), counts as something else.
    """
    data = await at_most(reply, MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        reply.close()
        return {}
    try:
        fields = orjson.loads(data)
        orjson.dumps(fields)
    except (ValueError, TypeError):
        return {}
    return mapping(fields)


def is_name(value: object) -> TypeGuard[str]:
    """Return whether a value is a text of 1 to `MAX_MODEL_CHARS` characters."""
    return isinstance(value, str) and 0 < len(value) <= MAX_MODEL_CHARS

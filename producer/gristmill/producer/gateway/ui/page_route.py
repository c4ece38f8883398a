"""What all routes of the page have in common: the session, the headers, the errors as a page."""

import asyncio
import hmac
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException

from gristmill.producer.gateway.body_pool import Caller
from gristmill.producer.gateway.context import CurrentGateway
from gristmill.producer.gateway.failover_retry import REDIS_RETRY_S
from gristmill.producer.gateway.http_errors import ApiError, api_error
from gristmill.producer.gateway.request_body import read_body
from gristmill.producer.gateway.ui.page_sessions import Session, Sessions
from gristmill.producer.gateway.ui.rendering import render
from gristmill.shared.errors import GristmillError

SESSION_COOKIE = "gristmill_session"
LOGIN_COOKIE = "gristmill_login"
"""Cookie of the sign-in form. Its value is also a field of the form, so another site cannot sign a browser in."""

MAX_FORM_FIELDS = 20

MAX_FORM_BYTES = 8 * 1024
"""Most bytes of a form; the longest one has an id and two tokens."""

LOGIN = "/ui/login"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send forms with the Origin `null`
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every answer: nothing inline, nothing from another host, in no frame."""

REDIS_HANGS = ApiError(
    503, "the queue's Redis does not answer in time; nothing is lost, load the page again", code="redis_away"
)  # fmt: skip
"""Error of a page whose time for Redis has ended. As an `OSError` it would pass for one of the storage."""

_KNOWN = (ApiError, GristmillError, RedisError, OSError, HTTPException, RequestValidationError)


class PageRoute(APIRoute):
    """A route of the page: adds the headers, and turns errors into a page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a call."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response = await handle(request)
            except TimeoutError:
                response = _error_page(request, REDIS_HANGS)
            except _KNOWN as error:
                response = _error_page(request, api_error(error))
            response.headers.update(HEADERS)
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        return answer


def _error_page(request: Request, error: ApiError) -> Response:
    if error.status == 401 and request.method == "GET" and not wants_events(request):
        return RedirectResponse(LOGIN, 303)
    page = render("error.html", title="Error", status=error.status, message=error.message)
    return HTMLResponse(page, error.status, dict(error.headers))


def wants_events(request: Request) -> bool:
    """Return whether the browser asks for the live events of a page."""
    return "text/event-stream" in request.headers.get("accept", "")


async def signed_in(request: Request, gateway: CurrentGateway) -> Session:
    """Return the session of a call.

    Raises:
        ApiError: 401: the call has no session, or its session has ended.
        TimeoutError: Redis does not answer within `REDIS_RETRY_S`.
    """
    token = request.cookies.get(SESSION_COOKIE, "")
    async with asyncio.timeout(REDIS_RETRY_S):  # the socket of a Redis that hangs waits longer
        await gateway.check_format()
        session = await Sessions(gateway.queue.redis).find(token)
    if session is None:
        raise ApiError(401, "sign in with an admin key (gristmill admin create NAME)")
    request.state.call.facts["admin"] = session.admin
    return session


SignedIn = Annotated[Session, Depends(signed_in)]
"""The session of the call; a route with this argument needs one."""


async def read_form(request: Request, gateway: CurrentGateway) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        ApiError: 403: a page of another site sent it; 413: it is too long; 400: it has too many fields.
    """
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is not None and origin.partition("://")[2] != host:
        raise ApiError(403, "a page of another site sent this form", code="cross_site")
    address = address_of(request)
    with gateway.body_pools.share(Caller(address, address)) as share:
        body = await read_body(request, share, MAX_FORM_BYTES)
    text = body.decode(errors="replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS))
    except ValueError as error:
        raise ApiError(400, f"the form has more than {MAX_FORM_FIELDS} fields") from error


async def checked_form(
    request: Request, gateway: CurrentGateway, session: SignedIn
) -> dict[str, str]:
    """Return the fields of a form of this session.

    Raises:
        ApiError: 403: the form lacks the session's CSRF token.
    """
    form = await read_form(request, gateway)
    check_token(form.get("csrf", ""), session.csrf)
    return form


CheckedForm = Annotated[dict[str, str], Depends(checked_form)]
"""The fields of a form with the right CSRF token."""


def check_token(given: str, right: str) -> None:
    """Compare two tokens in constant time.

    Raises:
        ApiError: 403: they differ.
    """
    if not right or not hmac.compare_digest(given.encode(), right.encode()):
        message = "this form is too old or not from this page; load the page again"
        raise ApiError(403, message, code="csrf")


def address_of(request: Request) -> str:
    """Return the address of the caller."""
    return request.client.host if request.client else ""

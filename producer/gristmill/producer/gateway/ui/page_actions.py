"""The routes of what people do on the page: sign in and out, requeue a dead letter, ask for a prompt or an answer.

Each is a POST with a CSRF token. Each leaves a log line with the admin's name, never with content.
"""

import secrets

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from gristmill.producer.gateway.context import CurrentGateway, Gateway
from gristmill.producer.gateway.http_errors import ApiError
from gristmill.producer.gateway.ui.page_content import queue_named
from gristmill.producer.gateway.ui.page_route import (
    LOGIN,
    LOGIN_COOKIE,
    SESSION_COOKIE,
    CheckedForm,
    PageRoute,
    SignedIn,
    address_of,
    check_token,
    read_form,
)
from gristmill.producer.gateway.ui.page_sessions import SESSION_TTL_S, Sessions
from gristmill.producer.gateway.ui.private_texts import TITLES, Kind, read_text
from gristmill.producer.gateway.ui.rendering import path, render
from gristmill.shared.queue import Queue

log = structlog.get_logger()

router = APIRouter(route_class=PageRoute)

MAX_SHOWN_CHARS = 64 * 1024
"""Most characters of a private text on the page."""


@router.get("/ui/login")
async def login_form(request: Request) -> Response:
    """Show the form to sign in."""
    return _login_page(request)


@router.post("/ui/login")
async def login(request: Request, gateway: CurrentGateway) -> Response:
    """Sign in with an admin key."""
    await gateway.check_format()
    form = await read_form(request, gateway)
    check_token(form.get("csrf", ""), request.cookies.get(LOGIN_COOKIE, ""))
    sessions = Sessions(gateway.queue.redis)
    if wait_ms := await sessions.login_wait_ms(address_of(request)):
        problem = f"too many tries from your address; try again in {wait_ms / 1000:.0f} s"
        return _login_page(request, problem, 429)
    session = await sessions.open(form.get("key", "").strip())
    if session is None:
        log.warning("admin.refused", address=address_of(request))
        return _login_page(
            request, "this is no admin key; make one: gristmill admin create NAME", 403
        )
    log.info("admin.signed_in", admin=session.admin, address=address_of(request))
    response = RedirectResponse("/ui/queues", 303)
    _set_cookie(request, response, SESSION_COOKIE, session.token, SESSION_TTL_S)
    response.delete_cookie(LOGIN_COOKIE, path="/ui")
    return response


@router.post("/ui/logout")
async def logout(gateway: CurrentGateway, session: SignedIn, _: CheckedForm) -> Response:
    """Sign out."""
    await Sessions(gateway.queue.redis).close(session.token)
    log.info("admin.signed_out", admin=session.admin)
    response = RedirectResponse(LOGIN, 303)
    response.delete_cookie(SESSION_COOKIE, path="/ui")
    response.headers["Clear-Site-Data"] = '"cache"'
    return response


@router.post("/ui/requeue")
async def requeue(gateway: CurrentGateway, session: SignedIn, form: CheckedForm) -> Response:
    """Submit a dead letter again as a new request, and lead to the new request."""
    queue, dead_id = _subject(gateway, form)
    # The same press sent twice makes one request: the dead letter is gone after the first.
    request_id = await queue.dead_letters.owned_id(dead_id)
    if await queue.dead_letters.requeue(dead_id, request_id) == "missing":
        message = (
            f"{dead_id[:200]!r} is no dead letter, was requeued before, or was never a request"
        )
        raise ApiError(404, message)
    log.info("dead_letter.requeued", admin=session.admin, queue=queue.keys.queue, id=dead_id, new_id=request_id)  # fmt: skip
    return RedirectResponse(f"/ui/request?id={path(request_id)}", 303)


@router.post("/ui/content/{kind}")
async def content(
    kind: Kind, gateway: CurrentGateway, session: SignedIn, form: CheckedForm
) -> Response:
    """Show a prompt, an answer, a dead letter's request or a batch's first errors, as somebody asked for it."""
    queue, subject = _subject(gateway, form)
    log.info("content.shown", admin=session.admin, kind=kind, queue=queue.keys.queue, id=subject)
    text = await read_text(gateway, queue, kind, subject)
    page = render(
        "content.html", title=TITLES[kind], page="content", kind=kind, subject=subject, text=text[:MAX_SHOWN_CHARS],
        num_cut=max(0, len(text) - MAX_SHOWN_CHARS), session=session, query={},
        queue_names=[each.name for each in gateway.models.queues],
    )  # fmt: skip
    return HTMLResponse(page)


def _subject(gateway: Gateway, form: dict[str, str]) -> tuple[Queue, str]:
    """Return the queue and the id that a button names: `queue/id`."""
    name, _, subject = form.get("subject", "").partition("/")
    if not subject:
        raise ApiError(400, "the form has no subject")
    return queue_named(gateway, name), subject


def _login_page(request: Request, problem: str = "", status: int = 200) -> Response:
    token = request.cookies.get(LOGIN_COOKIE) or secrets.token_urlsafe(32)
    page = HTMLResponse(render("login.html", title="Sign in", csrf=token, problem=problem), status)
    _set_cookie(request, page, LOGIN_COOKIE, token, 3600)
    return page


def _set_cookie(request: Request, response: Response, name: str, value: str, ttl_s: int) -> None:
    response.set_cookie(
        name, value, max_age=ttl_s, path="/ui", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip

"""What the page changes or discloses: sign in and out, requeue a dead letter, show a prompt or an answer.

Each is a POST with a CSRF token, and each leaves a log line with the admin's name, never with content.
"""

import secrets
from collections.abc import AsyncIterator
from typing import Any, Literal

import orjson
import structlog
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from gristmill.producer.gateway.context import CurrentGateway, Gateway
from gristmill.producer.gateway.failover_retry import retry_redis
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
from gristmill.producer.gateway.ui.rendering import path, render
from gristmill.shared.errors import NotFound
from gristmill.shared.queue import Queue
from gristmill.shared.records import Record
from gristmill.shared.request import new_id

log = structlog.get_logger()

router = APIRouter(route_class=PageRoute)

MAX_SHOWN_CHARS = 64 * 1024
"""Most characters of a prompt or an answer on the page."""

TITLES = {
    "prompt": "Prompt", "answer": "Answer", "dead-letter": "Request of a dead letter", "first-errors": "First errors of a batch",
}  # fmt: skip
"""Kind of content -> title of its page."""

MAX_ERROR_ROWS = 5
"""Rows with an error that a batch shows."""

MAX_ROW_BYTES = 16 * 2**20
"""Most bytes of the rows that are read to find them."""

Kind = Literal["prompt", "answer", "dead-letter", "first-errors"]
"""Content that somebody may ask for."""


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
    request_id = new_id()
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
    text = await _text(gateway, queue, kind, subject)
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


async def _text(gateway: Gateway, queue: Queue, kind: Kind, subject: str) -> str:
    if kind == "prompt":
        return await _prompt(queue, subject)
    if kind == "answer":
        return await _answer(queue, subject)
    if kind == "dead-letter":
        return await _dead_letter(queue, subject)
    return await _first_errors(gateway, subject)


async def _prompt(queue: Queue, request_id: str) -> str:
    redis: Any = queue.redis
    record = await retry_redis(redis.get, queue.keys.request(request_id))
    if record is None:
        raise NotFound(
            f"request {request_id[:200]!r} has ended; the queue keeps no prompt after that"
        )
    return _body_of(record)


async def _answer(queue: Queue, request_id: str) -> str:
    (result,) = await retry_redis(queue.results, [request_id])
    if result is None:
        raise NotFound(f"request {request_id[:200]!r} has no result yet, or it has expired")
    shown = {"error": result.error, "metadata": result.metadata, "body": result.body}
    return orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode(errors="replace")


async def _dead_letter(queue: Queue, dead_id: str) -> str:
    letter = await retry_redis(queue.dead_letters.get, dead_id)
    if letter is None:
        raise NotFound(f"there is no dead letter {dead_id[:200]!r}; somebody may have requeued it")
    return _body_of(letter.record)


def _body_of(record: bytes) -> str:
    """Return the body of a record, indented if it is JSON; all bytes of what is no record."""
    try:
        body = Record.parse(record).body
    except (ValueError, IndexError):
        body = record
    try:
        return orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2).decode()
    except ValueError:
        return body.decode(errors="replace")


async def _first_errors(gateway: Gateway, batch_id: str) -> str:
    """Return the first rows of a batch that have an error, as they lie in the storage."""
    state = await gateway.batches.store.records.state(batch_id)
    chunks = await gateway.batches.results(state.record.tenant, batch_id)
    rows = [row async for row in _error_rows(chunks)]
    return "\n".join(rows) or "No row with an error is written so far."


async def _error_rows(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    rest, num_bytes, num_rows = b"", 0, 0
    async for chunk in chunks:
        num_bytes += len(chunk)
        *rows, rest = (rest + chunk).split(b"\n")
        for row in filter(_has_error, rows):
            yield row.decode(errors="replace")
            num_rows += 1
            if num_rows == MAX_ERROR_ROWS:
                return
        if num_bytes >= MAX_ROW_BYTES:
            yield f"(looked at the first {MAX_ROW_BYTES // 2**20} MiB of rows)"
            return


def _has_error(row: bytes) -> bool:
    try:
        fields = orjson.loads(row)
    except ValueError:
        return False
    if not isinstance(fields, dict):
        return False
    response = fields.get("response") or {}
    return bool(fields.get("error")) or response.get("status_code", 200) >= 400


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

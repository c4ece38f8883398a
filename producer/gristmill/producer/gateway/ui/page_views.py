"""The routes that show a page. One address answers with the page, or with its live events if the browser asks for them."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from redis.exceptions import RedisError

from gristmill.producer.gateway.context import CurrentGateway, Gateway
from gristmill.producer.gateway.http_errors import ApiError
from gristmill.producer.gateway.ui import page_content
from gristmill.producer.gateway.ui.live_pages import LivePages
from gristmill.producer.gateway.ui.page_content import Values
from gristmill.producer.gateway.ui.page_route import PageRoute, SignedIn, wants_events
from gristmill.producer.gateway.ui.page_sessions import Session, Sessions
from gristmill.producer.gateway.ui.rendering import STATIC, render, static_file

router = APIRouter(route_class=PageRoute)

MAX_START = 1_000_000
"""Highest offset of a page."""

Start = Annotated[int, Query(ge=0, le=MAX_START)]
Name = Annotated[str, Query(max_length=200)]


@router.get("/ui")
@router.get("/ui/")
async def home() -> Response:
    """Lead to the first page."""
    return RedirectResponse("/ui/queues", 303)


@router.get("/ui/static/{name}")
async def static(name: str) -> Response:
    """Return a static file; it needs no session."""
    if name not in STATIC:
        raise ApiError(404, "there is no such file")
    headers = {"Cache-Control": "no-cache"}
    return Response(static_file(name), media_type=STATIC[name], headers=headers)


@router.get("/ui/queues")
async def queues(call: Request, gateway: CurrentGateway, session: SignedIn) -> Response:
    """Show the queues: depth, seconds of work, workers, speed."""
    return await _show(call, gateway, session, "queues", partial(page_content.queues, gateway))


@router.get("/ui/workers")
async def workers(
    call: Request, gateway: CurrentGateway, session: SignedIn, queue: Name = "", start: Start = 0
) -> Response:
    """Show the workers of a queue and what their engines do."""
    read = partial(page_content.workers, gateway, queue, start)
    return await _show(call, gateway, session, "workers", read, queue=queue, start=start)


@router.get("/ui/batches")
async def batches(
    call: Request, gateway: CurrentGateway, session: SignedIn, after: Name = ""
) -> Response:
    """Show the batches of all tenants, newest first."""
    read = partial(page_content.batches, gateway, after)
    return await _show(call, gateway, session, "batches", read, after=after)


@router.get("/ui/batch")
async def batch(call: Request, gateway: CurrentGateway, session: SignedIn, id: Name) -> Response:
    """Show one batch: progress, time left, counts, first errors."""
    read = partial(page_content.batch, gateway, id)
    return await _show(call, gateway, session, "batch", read, id=id)


@router.get("/ui/request")
async def request(
    call: Request,
    gateway: CurrentGateway,
    session: SignedIn,
    id: Name = "",
) -> Response:
    """Show the way of one request, or the form that asks for its id."""
    read = partial(page_content.request, gateway, id.strip())
    return await _show(call, gateway, session, "request", read, id=id.strip())


@router.get("/ui/dead")
async def dead(
    call: Request, gateway: CurrentGateway, session: SignedIn, queue: Name = "", start: Start = 0
) -> Response:
    """Show the dead letters of a queue with their evidence."""
    read = partial(page_content.dead_letters, gateway, queue, start)
    return await _show(call, gateway, session, "dead", read, queue=queue, start=start)


@router.get("/ui/tenants")
async def tenants(
    call: Request, gateway: CurrentGateway, session: SignedIn, queue: Name = "", after: Name = ""
) -> Response:
    """Show the tenants with their limits, load and usage."""
    read = partial(page_content.tenants, gateway, queue, after)
    return await _show(call, gateway, session, "tenants", read, queue=queue, after=after)


@router.get("/ui/{rest:path}")
async def missing(rest: str) -> Response:
    """Answer a wrong address."""
    raise ApiError(404, f"there is no page {rest[:80]!r}")


TITLES = {
    "queues": "Queues", "workers": "Workers", "batches": "Batches", "batch": "Batch", "request": "Request",
    "dead": "Dead letters", "tenants": "Tenants",
}  # fmt: skip
"""Name of a page's template -> its title."""


async def _show(
    call: Request,
    gateway: Gateway,
    session: Session,
    name: str,
    read: Callable[[], Awaitable[Values]],
    **query: str | int,
) -> Response:
    """Return a page, or its events if the browser asks for them. Both share the cached content."""
    live: LivePages = call.app.state.live_pages
    queue_names = [each.name for each in gateway.models.queues]

    async def fragment() -> str:
        return render(f"{name}.html", **await read(), queue_names=queue_names)

    key = f"{name}?{urlencode(query)}"
    if wants_events(call):
        live.check_room()
        events = live.events(key, fragment, partial(_is_signed_in, gateway, session))
        headers = {"X-Accel-Buffering": "no"}  # a proxy such as nginx would hold the events back
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)
    content = await live.fragment(key, fragment)
    page = render(
        "page.html", title=TITLES[name], page=name, content=content, session=session,
        queue_names=queue_names, query=query,
    )  # fmt: skip
    return HTMLResponse(page)


async def _is_signed_in(gateway: Gateway, session: Session) -> bool:
    """Return whether a session still stands; True while Redis does not answer."""
    try:
        return await Sessions(gateway.queue.redis).find(session.token) is not None
    except (RedisError, OSError):
        return True

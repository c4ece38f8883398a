"""The page of the gateway for operators, `/ui`. docs/ui.md describes it, docs/gateway.md maps the files.

`server.py` includes `router()`. Everything here reads by way of `overview/`, and nothing here formats a key.
"""

from fastapi import APIRouter

from gristmill.shared.install import install_hint


def router() -> APIRouter:
    """Return the routes of the page; without the extra `ui`, one route that says how to install it."""
    try:
        import jinja2  # noqa: F401  # the extra `ui`; without it no module below can be imported
    except ModuleNotFoundError:
        return _absent()
    from gristmill.producer.gateway.ui import page_actions, page_views

    both = APIRouter(include_in_schema=False)
    both.include_router(page_actions.router)
    both.include_router(page_views.router)
    return both


def _absent() -> APIRouter:
    from gristmill.producer.gateway.http_errors import ApiError

    absent = APIRouter(include_in_schema=False)

    @absent.get("/ui")
    @absent.get("/ui/{rest:path}")
    async def missing() -> None:
        message = f"this gateway has no page, because Jinja2 is missing; {install_hint('ui')}"
        raise ApiError(404, message, code="no_page")

    return absent

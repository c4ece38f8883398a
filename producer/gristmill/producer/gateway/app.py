"""The application: routes, errors and middleware around one `Gateway`."""

from importlib.metadata import version

from fastapi import FastAPI

from gristmill.producer.gateway import batches, elsewhere, errors, files, models, probes, requests
from gristmill.producer.gateway.access import Access
from gristmill.producer.gateway.service import Gateway


def create_app(gateway: Gateway) -> FastAPI:
    """Return the ASGI application; whoever opened the gateway closes it."""
    app = FastAPI(
        title="Gristmill",
        version=version("gristmill"),
        description="OpenAI's Files and Batches API, and single requests, over a queue of GPU workers.",
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    errors.install(app)
    for module in (files, batches, requests, models):
        app.include_router(module.router, responses=errors.RESPONSES)
    app.include_router(elsewhere.router)
    app.include_router(probes.router)
    app.add_middleware(Access)
    return app

"""The engine's own paths, where OpenAI's client looks first: what is here instead.

A gateway queues; it does not hold a connection open to an engine.
"""

from fastapi import APIRouter, Request

from gristmill.producer.gateway.errors import ApiError
from gristmill.shared.records import ENDPOINTS

router = APIRouter(include_in_schema=False)


async def elsewhere(request: Request) -> None:
    """Say where a request for an engine goes."""
    path = request.url.path
    raise ApiError(
        404,
        f"POST {path} is not answered here, requests are queued: POST /v1/requests with"
        f' {{"endpoint": "{path}", "body": ...}} and the header Prefer: wait=60 to wait for the answer,'
        " or POST /v1/batches for a file of them",
    )


for endpoint in ENDPOINTS:
    router.add_api_route(endpoint, elsewhere, methods=["POST"])

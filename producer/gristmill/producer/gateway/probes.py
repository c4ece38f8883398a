"""`/healthz`, `/readyz` and `/metrics`, for Kubernetes and Prometheus; no key is needed."""

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from redis.exceptions import RedisError

from gristmill.producer.gateway.service import GatewayOf

router = APIRouter(tags=["probes"], default_response_class=PlainTextResponse)

READY_TIMEOUT_S = 2.0


@router.get("/healthz")
async def healthz() -> str:
    """Say that the loop runs."""
    return "ok\n"


@router.get("/readyz")
async def readyz(gateway: GatewayOf) -> Response:
    """Say whether Redis answers and the gateway is not about to stop."""
    if gateway.stopping.is_set():
        return PlainTextResponse("stopping\n", 503)
    redis: Any = gateway.queue.redis
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await redis.exists(gateway.queue.keys.stats)
    except (RedisError, OSError, TimeoutError):
        return PlainTextResponse("Redis does not answer\n", 503)
    return PlainTextResponse("ok\n")


@router.get("/metrics")
async def metrics() -> Response:
    """Return the gateway's series."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

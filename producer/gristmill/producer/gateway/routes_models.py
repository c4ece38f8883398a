"""Routes of `/v1/models`, and a 404 with a remedy for the engine's own paths."""

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from gristmill.producer.gateway.context import CallingTenant, CurrentGateway, Gateway
from gristmill.producer.gateway.http_errors import ApiError
from gristmill.shared.errors import NotFound
from gristmill.shared.request import ENDPOINTS

router = APIRouter(tags=["models"])
unsupported_router = APIRouter(include_in_schema=False)


CREATED_S = 0
"""`created` of each model: no worker knows when it was made, and the time of the call would change with each call."""


class Model(BaseModel):
    """One model or adapter.

    Attributes:
        max_model_len: Prompt and output tokens of one request; None if no worker reports it.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "gristmill"
    max_model_len: int | None = None


class ModelList(BaseModel):
    """All models and adapters."""

    object: Literal["list"] = "list"
    data: list[Model]


@router.get("/v1/models", response_model=ModelList)
async def models(gateway: CurrentGateway, tenant: CallingTenant) -> ModelList:
    """List the models of all workers whose lease is live, and the declared ones."""
    return ModelList(data=await _served(gateway))


@router.get("/v1/models/{model_id:path}", response_model=Model)
async def model(model_id: str, gateway: CurrentGateway, tenant: CallingTenant) -> Model:
    """Return one model."""
    for each in await _served(gateway):
        if each.id == model_id:
            return each
    raise NotFound(
        f"no worker serves model {model_id[:200]!r}; GET /v1/models lists what is served"
    )


async def _served(gateway: Gateway) -> list[Model]:
    models = await gateway.models.models()
    return [
        Model(id=name, created=CREATED_S, max_model_len=length or None)
        for name, length in sorted(models.items())
    ]


async def unsupported(request: Request) -> None:
    """Refuse a call of an engine's path without live requests, such as `/tokenize`, and name the route to use."""
    path = request.url.path
    raise ApiError(
        404,
        f"this gateway has no POST {path}; send POST /v1/requests with"
        f' {{"endpoint": "{path}", "body": ...}} and the header Prefer: wait=60 to wait for the answer,'
        " or POST /v1/batches for a file of requests",
    )


for endpoint in ENDPOINTS:  # those of `routes_live` are answered before
    unsupported_router.add_api_route(endpoint, unsupported, methods=["POST"])

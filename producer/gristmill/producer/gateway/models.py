"""The routes of `/v1/models`: what the registered workers serve."""

import time
from functools import partial
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from gristmill.producer.gateway.callers import Caller
from gristmill.producer.gateway.patience import patiently
from gristmill.producer.gateway.service import GatewayOf
from gristmill.shared.errors import NotFound
from gristmill.shared.fleet import look
from gristmill.shared.queue import Queue

router = APIRouter(tags=["models"])


class Model(BaseModel):
    """One model or adapter.

    Attributes:
        max_model_len: Prompt and output tokens of one request; None if no worker says.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "gristmill"
    max_model_len: int | None = None


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[Model]


@router.get("/v1/models", response_model=ModelList)
async def models(gateway: GatewayOf, tenant: Caller) -> ModelList:
    """List the models of all workers whose lease is live."""
    return ModelList(data=await patiently(partial(_served, gateway.queue)))


@router.get("/v1/models/{model_id:path}", response_model=Model)
async def model(model_id: str, gateway: GatewayOf, tenant: Caller) -> Model:
    """Return one model."""
    for each in await patiently(partial(_served, gateway.queue)):
        if each.id == model_id:
            return each
    raise NotFound(
        f"no worker serves model {model_id[:200]!r}; GET /v1/models lists what is served"
    )


async def _served(queue: Queue) -> list[Model]:
    fleet = await look(queue)
    now_s = int(time.time())  # as vLLM says it; no worker knows when its model was made
    return [
        Model(id=name, created=now_s, max_model_len=length or None)
        for name, length in sorted(fleet.max_model_len.items())
    ]

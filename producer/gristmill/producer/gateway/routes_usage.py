"""Route of `/v1/usage`: what the calling tenant used, by day and model."""

from datetime import date
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from gristmill.producer.gateway.context import CallingTenant, CurrentGateway
from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.producer.gateway.http_errors import ApiError
from gristmill.producer.usage_report import cost_of, usage_lines
from gristmill.shared.usage_ledger import USAGE_DAYS, Ledger

router = APIRouter(tags=["tenant"])


class UsageObject(BaseModel):
    """What a tenant used of one model on one UTC day.

    Attributes:
        day: UTC day on which the requests ended.
        model: Served model that answered; empty if none did.
        requests: Requests with an answer, failed ones included.
        prompt_tokens: Tokens of the prompts, cached ones included.
        cached_tokens: Prompt tokens found in the prefix cache.
        output_tokens: Tokens generated.
        device_seconds: Share of the time of the engines' devices.
        cost: Its cost; None if the operator set no price.
    """

    object: Literal["usage"] = "usage"
    day: date
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    device_seconds: float
    cost: float | None = None


class UsageList(BaseModel):
    """The days and models of the calling tenant, by day."""

    object: Literal["list"] = "list"
    data: list[UsageObject]


@router.get("/v1/usage", response_model=UsageList)
async def usage(
    gateway: CurrentGateway,
    tenant: CallingTenant,
    start: Annotated[date | None, Query(description="first UTC day; default: first of the month of end")] = None,
    end: Annotated[date | None, Query(description="last UTC day; default: today")] = None,
) -> UsageList:  # fmt: skip
    """Return what the calling tenant used on each day of each model."""
    ledgers = [Ledger(each.queue) for each in gateway.models.queues]
    last = await retry_redis(ledgers[0].today) if end is None else end
    first = start or last.replace(day=1)
    if not 0 <= (last - first).days < USAGE_DAYS:
        message = f"start {first} to end {last} is no range of 1 to {USAGE_DAYS} days, which the ledger keeps; change it"
        raise ApiError(400, message, param="start")
    price = gateway.settings.device_hour_price
    rows = [
        row for each in ledgers for row in await retry_redis(each.rows, first, last, tenant.name)
    ]
    return UsageList(
        data=[
            UsageObject(
                day=date.fromisoformat(line.names[0]),
                model=line.names[1],
                **line.usage._asdict(),
                device_seconds=line.usage.device_ms / 1000,
                cost=cost_of(line.usage.device_ms, price) if price else None,
            )
            for line in usage_lines(rows, ("day", "model"), price)
        ]
    )

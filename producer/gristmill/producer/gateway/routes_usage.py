"""Route of `/v1/usage`: what the calling tenant used, by day and model."""

from collections import defaultdict
from datetime import date
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, BeforeValidator
from pydantic_core import PydanticCustomError

from gristmill.producer.gateway.context import CallingTenant, CurrentGateway
from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.producer.gateway.http_errors import ApiError
from gristmill.producer.usage_report import cost_of
from gristmill.shared.usage_ledger import USAGE_DAYS, Ledger, Usage

router = APIRouter(tags=["tenant"])


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise PydanticCustomError("day", "this is no day; write YYYY-MM-DD") from None


Day = Annotated[date, BeforeValidator(_day)]
"""A day as a query parameter."""


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
    start: Annotated[Day | None, Query(description="first UTC day; default: first of the month of end")] = None,
    end: Annotated[Day | None, Query(description="last UTC day; default: today")] = None,
) -> UsageList:  # fmt: skip
    """Return what the calling tenant used on each day of each model."""
    ledgers = [Ledger(each.queue) for each in gateway.models.queues]
    last = await retry_redis(ledgers[0].today) if end is None else end
    first = start or last.replace(day=1)
    _check_days(first, last)
    found: defaultdict[tuple[date, str], list[Usage]] = defaultdict(list)  # of all queues
    for ledger in ledgers:
        for row in await retry_redis(ledger.rows, first, last, tenant.name):
            found[row.day, row.model].append(row.usage)
    price = gateway.settings.device_hour_price
    data = [
        _usage_object(day, model, Usage.total(usages), price)
        for (day, model), usages in sorted(found.items())
    ]
    return UsageList(data=data)


def _check_days(first: date, last: date) -> None:
    if first > last:
        raise ApiError(400, f"start {first} is after end {last}; swap them", param="start")
    num_days = (last - first).days + 1
    if num_days > USAGE_DAYS:
        message = f"start {first} to end {last} is {num_days:,} days; the limit is {USAGE_DAYS}; ask for fewer"
        raise ApiError(400, message, param="start")


def _usage_object(day: date, model: str, usage: Usage, price: float) -> UsageObject:
    return UsageObject(
        day=day,
        model=model,
        requests=usage.requests,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        device_seconds=usage.device_ms / 1000,
        cost=cost_of(usage.device_ms, price) if price else None,
    )

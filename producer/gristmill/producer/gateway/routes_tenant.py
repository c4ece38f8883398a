"""Route of `/v1/tenant`: what the calling tenant may use, and what it uses."""

from fastapi import APIRouter
from pydantic import BaseModel

from gristmill.producer.gateway.context import CallingTenant, CurrentGateway
from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.producer.tenants import OverBudget
from gristmill.shared.request import Priority

router = APIRouter(tags=["tenant"])


class TenantLimits(BaseModel):
    """The limits of a tenant; docs/gateway.md explains them."""

    requests_per_minute: int
    max_depth: int
    max_bytes: int
    max_live: int
    max_batches: int
    max_storage_bytes: int
    max_priority: Priority
    tokens_per_day: int
    tokens_per_month: int
    over_budget: OverBudget


class TenantUsage(BaseModel):
    """What a tenant uses of its limits.

    Attributes:
        depth: Requests in the queues of this gateway, waiting or in flight.
        bytes: Bytes of those requests.
        live: Live requests in all queues; above 256, some that have ended may count too.
        batches: Batches that have not ended.
        storage_bytes: Bytes of files and of the results of batches.
        tokens_today: Prompt and output tokens of this UTC day in all queues, of requests that have ended.
        tokens_this_month: The same of this calendar month.
    """

    depth: int
    bytes: int
    live: int
    batches: int
    storage_bytes: int
    tokens_today: int
    tokens_this_month: int


class TenantObject(BaseModel):
    """The calling tenant."""

    object: str = "tenant"
    name: str
    limits: TenantLimits
    usage: TenantUsage


@router.get("/v1/tenant", response_model=TenantObject)
async def tenant(gateway: CurrentGateway, tenant: CallingTenant) -> TenantObject:
    """Return the limits of the calling tenant, and what it uses of them."""
    queues = gateway.models.queues
    loads = [await retry_redis(each.queue.tenants.load, tenant.name) for each in queues]
    num_batches = await retry_redis(gateway.batches.store.records.num_open, tenant.name)
    num_live = await gateway.live_limit.number(tenant)
    storage_bytes = await retry_redis(gateway.batches.files.use.num_bytes, tenant.name)
    tokens = await retry_redis(gateway.batches.store.budgets.use_of, tenant.name)
    return TenantObject(
        name=tenant.name,
        limits=TenantLimits.model_validate(tenant, from_attributes=True),
        usage=TenantUsage(
            depth=sum(depth for depth, _ in loads),
            bytes=sum(num_bytes for _, num_bytes in loads),
            live=num_live,
            batches=num_batches,
            storage_bytes=storage_bytes,
            tokens_today=tokens.tokens_today,
            tokens_this_month=tokens.tokens_this_month,
        ),
    )

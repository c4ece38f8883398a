"""The tenant that calls, as the routes ask for it."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gristmill.producer.gateway.service import GatewayOf
from gristmill.producer.tenants import Tenant

_bearer = HTTPBearer(auto_error=False, description="An API key of `gristmill tenant create`.")


async def caller(
    request: Request,
    gateway: GatewayOf,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Tenant:
    """Return who calls, and count the call.

    Raises:
        ApiError: 401 for an unknown key, 429 over the tenant's calls a minute.
    """
    tenant = await gateway.doorkeeper.tenant_of(credentials.credentials if credentials else "")
    request.state.call.tenant = tenant.name
    await gateway.limits.count_call(tenant)
    return tenant


Caller = Annotated[Tenant, Depends(caller)]
"""Who calls; a route that asks for it is closed to everybody else."""

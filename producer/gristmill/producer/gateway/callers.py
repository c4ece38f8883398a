"""The tenant that calls, as the routes ask for it."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gristmill.producer.gateway.doorkeeper import ANYBODY
from gristmill.producer.gateway.errors import ApiError
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
        ApiError: 401 for an unknown key, 403 for a web page without one, 429 over the tenant's calls a minute.
    """
    tenant = await gateway.doorkeeper.tenant_of(credentials.credentials if credentials else "")
    if tenant is ANYBODY and _is_from_another_site(request):
        message = "a web page of another site may not call a gateway that asks for no key"
        raise ApiError(403, message, code="cross_site")
    request.state.call.tenant = tenant.name
    await gateway.limits.count_call(tenant)
    return tenant


def _is_from_another_site(request: Request) -> bool:
    """Whether a browser calls for a page that is not ours: it names the page, and can reach loopback."""
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("host")


Caller = Annotated[Tenant, Depends(caller)]
"""Who calls; a route that asks for it is closed to everybody else."""

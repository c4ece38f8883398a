"""Who comes with which API key, and who is let in without one."""

import time
from functools import partial
from hashlib import sha256

from gristmill.producer.gateway.errors import ApiError
from gristmill.producer.gateway.patience import patiently
from gristmill.producer.tenants import Tenant, Tenants

KNOWN_FOR_S = 5.0
"""How long a change of a tenant, or the end of a key, may go unnoticed."""

MAX_KNOWN = 10_000

ANYBODY = Tenant(
    name="default", max_depth=2**53, max_bytes=2**53, max_batches=2**31, requests_per_minute=1_000_000
)  # fmt: skip
"""Who calls where there is no tenant yet; the queue's own limits bound him."""


class Doorkeeper:
    """Knows the tenants of API keys, for some seconds without asking.

    Args:
        tenants: Who there is.
        is_open: Whether everybody may come in while there is no tenant.
    """

    def __init__(self, tenants: Tenants, *, is_open: bool) -> None:
        self._tenants, self._is_open = tenants, is_open
        self._known: dict[bytes, tuple[float, Tenant]] = {}

    async def tenant_of(self, key: str) -> Tenant:
        """Return who comes with a key; "" for none.

        Raises:
            ApiError: 401: no key, or one that nobody has.
        """
        digest = sha256(key.encode(errors="replace")).digest()
        until_s, tenant = self._known.get(digest, (0.0, None))
        if tenant is None or time.monotonic() > until_s:
            tenant = await self._asked(key)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[digest] = (time.monotonic() + KNOWN_FOR_S, tenant)
        return tenant

    async def _asked(self, key: str) -> Tenant:
        found = await patiently(partial(self._tenants.by_key, key)) if key else None
        if found is not None:
            return found
        if self._is_open and not await patiently(self._tenants.exist):
            return ANYBODY
        what = "this API key is not known" if key else "an API key is needed"
        message = f"{what}: send Authorization: Bearer KEY; gristmill tenant create NAME makes one"
        raise ApiError(401, message, headers={"WWW-Authenticate": "Bearer"})

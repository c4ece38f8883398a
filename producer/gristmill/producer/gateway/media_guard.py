"""The check of the media URLs of single and live requests, with lookups in the DNS."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from weakref import WeakValueDictionary

from gristmill.producer.gateway.http_errors import RETRY_AFTER_S, ApiError
from gristmill.shared.media import check_media
from gristmill.shared.request import Request

NUM_DNS_THREADS, LOOKUPS_A_TENANT = 8, 2
"""Lookups at a time, and those of one tenant. The DNS servers of a tenant's hosts may never answer, and a lookup cannot
be stopped, so no tenant may have all threads."""

MAX_DNS_WAIT_S = 10.0
"""Longest wait for the hosts of one request's media URLs."""


class MediaGuard:
    """Refuses requests whose media URLs lead into a private network.

    Args:
        allowed: Hosts that any request may name.
    """

    def __init__(self, allowed: frozenset[str]) -> None:
        self._allowed = allowed
        # Separate threads, so that a slow DNS does not delay the storage.
        self._threads = ThreadPoolExecutor(NUM_DNS_THREADS, thread_name_prefix="gristmill-dns")
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def check(self, request: Request) -> None:
        """Check the media URLs of one request.

        Raises:
            InvalidRequest: A URL is not allowed.
            ApiError: 503: the DNS did not answer, or the tenant's other lookups did not end, within `MAX_DNS_WAIT_S`.
        """
        turns = self._turns.setdefault(request.tenant, asyncio.Semaphore(LOOKUPS_A_TENANT))
        try:
            async with asyncio.timeout(MAX_DNS_WAIT_S):
                await self._look_up(request, turns)
        except TimeoutError:
            raise ApiError(
                503,
                f"request {request.id}: the hosts of its media URLs could not be looked up within {MAX_DNS_WAIT_S:g} s"
                f" ({LOOKUPS_A_TENANT} lookups of a tenant at a time); send the data itself as data: URLs, or call again",
                code="lookup_timeout",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            ) from None

    async def _look_up(self, request: Request, turns: asyncio.Semaphore) -> None:
        """Check a request in a thread. Its turn ends with the thread, even if the call has given up by then."""
        await turns.acquire()
        loop = asyncio.get_running_loop()
        looking = loop.run_in_executor(self._threads, partial(check_media, request, self._allowed))

        def end_turn(ended: "asyncio.Future[None]") -> None:
            turns.release()
            if not ended.cancelled():
                ended.exception()  # a call that has given up does not read it

        looking.add_done_callback(end_turn)
        await asyncio.shield(looking)

    def close(self) -> None:
        """Cancel the lookups that have not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

"""Looks up the hosts of media URLs, a few calls at a time and not for long."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gristmill.shared.errors import InvalidRequest
from gristmill.shared.media import check_media
from gristmill.shared.records import Request

NUM_THREADS = 8
MAX_WAIT_S = 10.0


class MediaGuard:
    """Refuses requests that would have private media fetched.

    Args:
        allowed: Hosts from which anything may be fetched.
    """

    def __init__(self, allowed: frozenset[str]) -> None:
        self._allowed = allowed
        # Of its own: a slow DNS must not hold up the storage.
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="gristmill-dns")

    async def check(self, request: Request) -> None:
        """Check one request that may name media.

        Raises:
            InvalidRequest: A URL is not allowed, or the DNS took too long to say whose it is.
        """
        loop = asyncio.get_running_loop()
        looking = loop.run_in_executor(self._threads, partial(check_media, request, self._allowed))
        try:
            await asyncio.wait_for(looking, MAX_WAIT_S)
        except TimeoutError:
            raise InvalidRequest(
                f"request {request.id}: the hosts of its media URLs could not be looked up within {MAX_WAIT_S:g} s;"
                " send the data itself as data: URLs, or try again"
            ) from None

    def close(self) -> None:
        """Let go of what is still being looked up."""
        self._threads.shutdown(wait=False, cancel_futures=True)

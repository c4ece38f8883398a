"""What the bodies of all calls may take of this process's memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gristmill.producer.gateway.errors import RETRY_AFTER_S, ApiError

MAX_BYTES = 128 * 2**20


class Bodies:
    """Counts the bytes that are being read."""

    def __init__(self) -> None:
        self._num_bytes = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Yield what takes bytes for one body; they are given back at the end.

        Raises:
            ApiError: 503: others have taken `MAX_BYTES`.
        """
        taken = 0

        def take(num_bytes: int) -> None:
            nonlocal taken
            if self._num_bytes + num_bytes > MAX_BYTES:
                raise ApiError(
                    503,
                    f"the gateway reads {MAX_BYTES:,} bytes of bodies already; call again later",
                    code="gateway_busy",
                    headers={"Retry-After": str(RETRY_AFTER_S)},
                )
            taken += num_bytes
            self._num_bytes += num_bytes

        try:
            yield take
        finally:
            self._num_bytes -= taken

"""The error of a Redis at its `maxmemory`, and the words for a number of bytes."""

from redis.exceptions import OutOfMemoryError

AT_LIMIT = "it uses its whole maxmemory"
"""Words for a server whose memory this user may not see."""

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def in_words(num_bytes: int) -> str:
    """Return a number of bytes in its largest unit: `512 bytes`, `4.2 MiB`, `8 GiB`."""
    size, unit = float(num_bytes), "bytes"
    for larger in _UNITS:
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:,.1f}".removesuffix(".0") + f" {unit}"


class RedisFull(OutOfMemoryError):
    """Redis is at its `maxmemory` and refuses whatever adds data.

    Args:
        used_memory: Bytes that the server uses; 0 if this user may not ask.
        max_memory: The server's `maxmemory` in bytes; 0 if this user may not ask.
    """

    def __init__(self, used_memory: int, max_memory: int) -> None:
        used, limit = in_words(used_memory), in_words(max_memory)
        known = f"used {used} of maxmemory {limit}" if max_memory else AT_LIMIT
        super().__init__(known)

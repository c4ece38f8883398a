import pytest
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)

from gristmill.shared.errors import NotReplicated
from gristmill.shared.redis_full import RedisFull, in_words
from gristmill.shared.redis_trouble import remedy, trouble, trouble_in_short


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RedisFull(5 * 2**20, 2**22), "is full (used 5 MiB of maxmemory 4 MiB)"),
        (RedisFull(0, 0), "is full (it uses its whole maxmemory)"),
        (OutOfMemoryError("command not allowed"), "is full (it uses its whole maxmemory)"),
        (ConnectionError("refused."), "does not answer (refused)"),
        (TimeoutError(), "does not answer (TimeoutError)"),
        (OSError("no route"), "does not answer (no route)"),
        (BusyLoadingError("loading"), "is not ready (loading)"),
        (AuthenticationError("WRONGPASS"), "refused user or password (WRONGPASS)"),
        (NotReplicated("0 of 1"), "has too few replicas (0 of 1)"),
        (ResponseError("MISCONF disk"), "refused a command (MISCONF disk)"),
        (ReadOnlyError("a replica"), "refused a command (a replica)"),
    ],
)
def test_the_words_name_the_cause(error: Exception, words: str) -> None:
    assert trouble(error) == words
    assert trouble_in_short(error) == words.partition(" (")[0]


def test_the_remedy_belongs_to_the_cause() -> None:
    assert "maxmemory" in remedy(RedisFull(1, 1))
    assert "REDIS_URL" in remedy(ConnectionError())
    assert "log of Redis" in remedy(ResponseError("MISCONF"))


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1536, "1.5 KiB"), (2**25, "32 MiB"), (2**53, "8,192 TiB")],
)  # fmt: skip
def test_bytes_have_their_largest_unit(num_bytes: int, words: str) -> None:
    assert in_words(num_bytes) == words

import pytest
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    InvalidResponse,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)

from gristmill.shared.errors import (
    GristmillError,
    NotReplicated,
    RedisUnreachable,
    SettingsError,
)
from gristmill.shared.redis_full import RedisFull, in_words
from gristmill.shared.redis_trouble import error_in_words, remedy, trouble, trouble_in_short


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RedisFull(5 * 2**20, 2**22), "is full (used 5 MiB of maxmemory 4 MiB)"),
        (RedisFull(0, 0), "is full (it uses its whole maxmemory)"),
        (OutOfMemoryError("command not allowed"), "is full (it uses its whole maxmemory)"),
        (ConnectionError("refused."), "does not answer (refused)"),
        (TimeoutError(), "does not answer (no answer in time)"),
        (OSError("no route"), "does not answer (no route)"),
        (BusyLoadingError("loading"), "is not ready (loading)"),
        (AuthenticationError("WRONGPASS"), "refused user or password (WRONGPASS)"),
        (NotReplicated("0 of 1"), "has too few replicas (0 of 1)"),
        (
            AuthenticationError("HELLO must ..."),
            "refused user or password (the URL has no password)",
        ),
        (NoPermissionError("no get"), "denies this user a right (no get)"),
        (
            ResponseError("The user executing the script can't run this"),
            "denies this user a right (The user executing the script can't run this)",
        ),
        (
            ResponseError("DENIED Redis is in protected mode. In this mode " + "x" * 900),
            "admits only its own machine (DENIED Redis is in protected mode)",
        ),
        (
            ResponseError("DB index is out of range"),
            "has no database of this number (DB index is out of range)",
        ),
        (MovedError("1 h:6379"), "is a node of a cluster (1 h:6379)"),
        (ClusterDownError("slot"), "is a cluster without some of its nodes (slot)"),
        (
            ResponseError("This instance has cluster support disabled"),
            "is no cluster (This instance has cluster support disabled)",
        ),
        (ReadOnlyError("a replica"), "is a replica (a replica)"),
        (ResponseError("MISCONF disk"), "cannot write to its disk (MISCONF disk)"),
        (ResponseError("NOREPLICAS few"), "has too few replicas (NOREPLICAS few)"),
        (ResponseError("WRONGTYPE x"), "has a key of a wrong type (WRONGTYPE x)"),
        (ResponseError("unknown command 'x'"), "lacks a command (unknown command 'x')"),
        (
            ConnectionError("max number of clients reached"),
            "has too many clients (max number of clients reached)",
        ),
        (InvalidResponse("<"), "does not speak the protocol of Redis (<)"),
        (ResponseError("ERR x"), "refused a command (ERR x)"),
    ],
)
def test_the_words_name_the_cause(error: Exception, words: str) -> None:
    assert trouble(error) == words
    assert trouble_in_short(error) == words.partition(" (")[0]


def test_the_remedy_belongs_to_the_cause() -> None:
    assert "maxmemory" in remedy(RedisFull(1, 1))
    assert "REDIS_URL" in remedy(ConnectionError())
    assert "Rights" in remedy(NoPermissionError("NOPERM"))
    assert "RQ_REDIS_URL" in remedy(AuthenticationError("WRONGPASS"), "RQ_REDIS_URL")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (AuthenticationError("x"), RedisUnreachable), (NoPermissionError("x"), RedisUnreachable),
        (ResponseError("DENIED x"), RedisUnreachable), (ConnectionError("x"), RedisUnreachable),
        (ResponseError("DB index is out of range"), SettingsError), (InvalidResponse("<"), SettingsError),
        (ResponseError("MISCONF x"), GristmillError), (OutOfMemoryError("x"), GristmillError),
    ],
)  # fmt: skip
def test_error_for_people_is_one_line_with_its_remedy_and_without_the_password(
    error: Exception, kind: type[GristmillError]
) -> None:
    told = error_in_words(error, "redis://u:secret@h/0")
    assert type(told) is kind
    assert str(told) == f"Redis at redis://h/0 {trouble(error)}; {remedy(error)}"
    assert "\n" not in str(told)


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1536, "1.5 KiB"), (2**25, "32 MiB"), (2**53, "8,192 TiB")],
)  # fmt: skip
def test_bytes_have_their_largest_unit(num_bytes: int, words: str) -> None:
    assert in_words(num_bytes) == words

"""Say in words why Redis did not do a call, and what to do. Notices and errors take their words from here."""

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ConnectionError,
    OutOfMemoryError,
    ResponseError,
    TimeoutError,
)

from gristmill.shared.errors import (
    GristmillError,
    NotReplicated,
    RedisUnreachable,
    SettingsError,
)
from gristmill.shared.redis_full import AT_LIMIT, RedisFull
from gristmill.shared.redis_url import redacted


def trouble(error: Exception) -> str:
    """Return what is wrong with Redis, as the rest of a sentence that begins with its name."""
    detail = str(error).rstrip(".") or type(error).__name__
    if isinstance(error, OutOfMemoryError) and not isinstance(error, RedisFull):
        detail = AT_LIMIT
    return f"{trouble_in_short(error)} ({detail})"


def trouble_in_short(error: Exception) -> str:
    """Return the same without the error's own text, which may name machines of the operator."""
    if isinstance(error, OutOfMemoryError):
        return "is full"
    if isinstance(error, BusyLoadingError):
        return "is not ready"
    if isinstance(error, NotReplicated):
        return "has too few replicas"
    if isinstance(error, ResponseError):
        return "refused a command"
    if isinstance(error, AuthenticationError | AuthorizationError):
        return "refused user or password"
    return "does not answer"


def is_missing_database(error: Exception) -> bool:
    """Return whether the server has no database of the number that the URL names."""
    return isinstance(error, ResponseError) and "DB index" in str(error)


def error_in_words(error: Exception, url: str, setting: str = "REDIS_URL") -> GristmillError:
    """Return the error of Gristmill for one of redis-py.

    Args:
        error: What redis-py raised.
        url: URL of this Redis; the message has it without user and password. "" if it is not known.
        setting: Where the URL was set, for the remedy.

    Returns:
        RedisUnreachable for no connection, no answer or a refused login; SettingsError for a database that
        Redis does not have; else GristmillError.
    """
    where = f"Redis at {redacted(url)}" if url else "Redis"
    if isinstance(error, AuthenticationError | AuthorizationError):
        return RedisUnreachable(
            f"{where} {trouble(error)}; put them into {setting}: redis://user:password@host:port/0"
        )
    if isinstance(error, ConnectionError | TimeoutError | OSError):
        return RedisUnreachable(
            f"{where} {trouble(error)}; check that it runs, that this machine may reach it, and {setting}"
            " with its user and password"
        )
    if is_missing_database(error):
        return SettingsError(
            f"{where} has no database of this number ({error}); a server has databases 0 to 15 unless its"
            f" setting `databases` says otherwise; name one of them in {setting}"
        )
    return GristmillError(f"{where} {trouble(error)}; {remedy(error)}")


def remedy(error: Exception) -> str:
    """Return what an operator can do about it."""
    if isinstance(error, OutOfMemoryError):
        return (
            "read results and let them expire sooner (GRISTMILL_RESULT_TTL_S), or raise maxmemory"
        )
    if isinstance(error, BusyLoadingError | NotReplicated | ResponseError):
        return "look at the log of Redis and at its replicas"
    return "check that it runs, that this machine may reach it, and REDIS_URL"

"""Say in words why Redis did not do a call, and what to do. Notices and errors take their words from here."""

import re
from builtins import TimeoutError as TimeoutOfCall
from collections.abc import Sequence
from dataclasses import dataclass

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
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
from gristmill.shared.one_line import one_line
from gristmill.shared.redis_full import AT_LIMIT, RedisFull
from gristmill.shared.redis_url import redacted

MAX_DETAIL_CHARS = 160
"""Longest part of an error of Redis in a message; the error of protected mode has 900 characters."""


@dataclass(frozen=True, slots=True)
class _Trouble:
    """One thing that may be wrong with Redis.

    Attributes:
        kinds: Classes of redis-py's errors.
        pattern: Regular expression that the error's message contains; "" for every message.
        words: What is wrong, as the rest of a sentence that begins with the name of Redis.
        remedy: Advice to an operator; `{setting}` stands for the place of the URL.
        error: Class of the error for people. It decides a command's exit code.
    """

    kinds: tuple[type[Exception], ...]
    pattern: str
    words: str
    remedy: str
    error: type[GristmillError] = GristmillError


_NO_RIGHT = (
    "denies this user a right",
    "give the user in {setting} the rights of docs/operations.md (Rights), or a steward those of docs/steward.md (Redis)",
    RedisUnreachable,
)
"""Words, remedy and error of a missing right; Redis says it in another way inside a script."""

_TROUBLES: Sequence[_Trouble] = (
    _Trouble(
        (OutOfMemoryError,), "", "is full",
        "read results and let them expire sooner (GRISTMILL_RESULT_TTL_S), or raise maxmemory",
    ),
    _Trouble((BusyLoadingError,), "", "is not ready", "wait until it has read its file; its log shows the progress"),
    _Trouble((NotReplicated,), "", "has too few replicas", "look at its replicas"),
    _Trouble(
        (AuthenticationError, AuthorizationError), "", "refused user or password",
        "put them into {setting}: redis://user:password@host:port/0", RedisUnreachable,
    ),
    _Trouble((NoPermissionError,), "", *_NO_RIGHT),
    _Trouble((ResponseError,), "user executing the script can't", *_NO_RIGHT),
    _Trouble(
        (ResponseError,), "^DENIED", "admits only its own machine",
        "set a password in Redis, or protected-mode no if a firewall guards it", RedisUnreachable,
    ),
    _Trouble(
        (ResponseError,), "DB index", "has no database of this number",
        "name one of its databases in {setting}: 0 to 15 unless its setting `databases` says otherwise", SettingsError,
    ),
    _Trouble(
        (MovedError,), "", "is a node of a cluster",
        "begin {setting} with redis+cluster:// or rediss+cluster://", SettingsError,
    ),
    _Trouble(
        (ResponseError,), "cluster support disabled", "is no cluster",
        "begin {setting} with redis:// or rediss://", SettingsError,
    ),
    _Trouble((ClusterDownError,), "", "is a cluster without some of its nodes", "look at CLUSTER INFO and its nodes"),
    _Trouble((ReadOnlyError,), "", "is a replica", "name the primary or its sentinels in {setting}"),
    _Trouble((ResponseError,), "^MISCONF", "cannot write to its disk", "make room on its disk; its log has the cause"),
    _Trouble((ResponseError,), "^NOREPLICAS", "has too few replicas", "look at its replicas"),
    _Trouble(
        (ResponseError,), "^WRONGTYPE", "has a key of a wrong type",
        "`gristmill queue audit` names it; docs/operations.md (Rights) says what to do",
    ),
    _Trouble(
        (ResponseError,), "(?i)unknown (redis )?command|error compiling script", "lacks a command", "use Redis 7.0 or newer, or Valkey", SettingsError,
    ),
    _Trouble(
        (InvalidResponse,), "", "does not speak the protocol of Redis",
        "check host and port in {setting}", SettingsError,
    ),
    _Trouble(
        (ConnectionError,), "max number of clients", "has too many clients",
        "raise its maxclients, or stop some of its clients", RedisUnreachable,
    ),
    _Trouble((ResponseError,), "", "refused a command", "look at its log"),
    _Trouble(
        (ConnectionError, TimeoutError, OSError), "", "does not answer",
        "check that it runs, that this machine may reach it, and {setting} with its user and password", RedisUnreachable,
    ),
    _Trouble((Exception,), "", "does not answer", "look at its log"),
)  # fmt: skip
"""Known troubles; the first row that fits an error names it."""


def _trouble_of(error: Exception) -> _Trouble:
    text = str(error)
    return next(
        each
        for each in _TROUBLES
        if isinstance(error, each.kinds) and re.search(each.pattern, text)
    )


def trouble(error: Exception) -> str:
    """Return what is wrong with Redis, as the rest of a sentence that begins with its name."""
    return f"{trouble_in_short(error)} ({_detail(error)})"


def trouble_in_short(error: Exception) -> str:
    """Return the same without the error's own text, which may name machines of the operator."""
    return _trouble_of(error).words


def remedy(error: Exception, setting: str = "REDIS_URL") -> str:
    """Return what an operator can do about it.

    Args:
        error: Error of redis-py.
        setting: Setting with the URL.
    """
    return _trouble_of(error).remedy.format(setting=setting)


def error_in_words(error: Exception, url: str, setting: str = "REDIS_URL") -> GristmillError:
    """Return the error of Gristmill for one of redis-py.

    Args:
        error: Error of redis-py.
        url: URL of this Redis; the message has it without user and password. "" if it is not known.
        setting: Setting with the URL, for the remedy.

    Returns:
        RedisUnreachable for no connection, no answer, a refused login or a missing right; SettingsError for a
        URL that fits no Redis of this kind; else GristmillError.
    """
    where = f"Redis at {redacted(url)}" if url else "Redis"
    message = f"{where} {trouble(error)}; {remedy(error, setting)}"
    return _trouble_of(error).error(message)


def own_text(error: Exception) -> str:
    """Return the error's own text; for an error without one, what its class says."""
    is_late = isinstance(error, TimeoutError | TimeoutOfCall)
    return str(error) or ("no answer in time" if is_late else type(error).__name__)


def _detail(error: Exception) -> str:
    """Return the error's own text without what follows its first sentence."""
    text = one_line(own_text(error))
    if isinstance(error, OutOfMemoryError) and not isinstance(error, RedisFull):
        return AT_LIMIT
    if isinstance(error, AuthenticationError) and text.startswith("HELLO"):
        return "the URL has no password"  # redis-py says how HELLO is used
    return one_line(text.partition(". ")[0].rstrip("."), MAX_DETAIL_CHARS) or type(error).__name__

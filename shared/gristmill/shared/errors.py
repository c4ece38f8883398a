"""Define the exception tree; its branches say what the caller can do.

Every message says what happened, the id or value, the limit and the remedy. An error carries the parts
of its message as attributes, so that no caller has to parse the text. `redis_retry` repeats a call that
failed with an error of redis-py; entry points and the first call of a client turn one into
`RedisUnreachable`, and other calls pass it on as it is.
"""

from typing import Any


class GristmillError(Exception):
    """Root of every error that Gristmill raises on purpose; process pools can pickle each."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.args, self.__dict__)


class InvalidRequest(GristmillError):
    """The request breaks a rule; the caller must change it. Nothing was submitted.

    Args:
        reason: What is wrong, which value met which limit, and what to do.
        code: The kind of rule, for programs; OpenAI's code where it has one.
        request_id: The id of the request; None if it has no valid id, or if no single request is at fault.

    Attributes:
        reason: The message without the id.
        code: The kind of rule.
        request_id: The id of the request, or None.
    """

    code = "invalid_request"

    def __init__(self, reason: str, code: str = "", *, request_id: str | None = None) -> None:
        super().__init__(_about(request_id, reason))
        self.reason = reason
        self.code = code or self.code
        self.request_id = request_id


class IdConflict(InvalidRequest):
    """The id belongs to a request with another body or endpoint; use a new id."""

    code = "id_conflict"


class NotServed(InvalidRequest):
    """No live worker of the queue serves the request's model or endpoint; ask for another."""


class QueueFull(GristmillError):
    """The queue is at its cap; the caller can wait and submit again.

    Attributes:
        depth: Requests in the queue, waiting or in flight.
        queued_bytes: Bytes of their records.
    """

    def __init__(self, message: str, depth: int, queued_bytes: int) -> None:
        super().__init__(message)
        self.depth = depth
        self.queued_bytes = queued_bytes


class NotFound(GristmillError):
    """Nothing has this id, or it belongs to another tenant; the error does not say which."""


class LimitReached(GristmillError):
    """A tenant is at its limit; it must wait until some of its earlier work has finished."""


class StorageQuotaReached(LimitReached):
    """A tenant's files and results fill its storage quota; it must delete some, waiting does not help."""


class BudgetUsedUp(LimitReached):
    """A tenant used up its tokens of the day or of the month; it must wait until its budget renews."""


class NotReplicated(GristmillError):
    """The primary has the requests, but too few replicas have them; submit again, which is safe."""


class ResultExpired(GristmillError):
    """Neither a request nor a result exists under this id: never submitted, or its TTL ended.

    Args:
        reason: What is known about the id, and what to do.
        request_id: The id.

    Attributes:
        reason: The message without the id.
        request_id: The id.
    """

    def __init__(self, reason: str, *, request_id: str) -> None:
        super().__init__(_about(request_id, reason))
        self.reason = reason
        self.request_id = request_id


class SettingsError(GristmillError):
    """A setting is missing or contradicts another; the operator must change it."""


class WrongFormat(SettingsError):
    """Another version of Gristmill wrote the queue, in a format that this one cannot read."""


class RedisUnreachable(GristmillError):
    """Redis does not answer, or refuses the login; check REDIS_URL and Redis."""


class TooLargeForRedis(GristmillError):
    """Redis refuses one call for its size; raise its limits, or send less.

    Args:
        num_bytes: Bytes of the call's values.
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__(
            f"Redis refuses a call of {num_bytes:,} bytes; raise proto-max-bulk-len and"
            " client-query-buffer-limit in its configuration, or send less"
        )


class LeaseLost(GristmillError):
    """The queue has given this worker's requests away; the worker must start over under a new name.

    Attributes:
        worker: The incarnation that held the lease.
    """

    def __init__(self, message: str, worker: str) -> None:
        super().__init__(message)
        self.worker = worker


class EngineError(GristmillError):
    """The engine could not answer, and the request is not the cause."""


class EngineUnavailable(EngineError):
    """The engine did not serve this request (overloaded, unreachable, shutting down): try again later.

    Attributes:
        is_refusal: True if the engine refused the request before it ran.
        retry_after_s: Seconds that the engine asks to wait; 0 if it names none.
    """

    def __init__(
        self, message: str, *, is_refusal: bool = False, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal
        self.retry_after_s = retry_after_s


class EngineHungUp(EngineError):
    """The engine lives and broke off this one request; the attempt counts."""


class EngineDied(EngineError):
    """The engine will answer nothing more; it must be restarted."""


def _about(request_id: str | None, reason: str) -> str:
    return reason if request_id is None else f"request {request_id}: {reason}"


def _unpickled(kind: type[GristmillError], args: Any, attributes: dict[str, Any]) -> GristmillError:
    """Rebuild an error without its constructor, whose arguments differ from `args`."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error

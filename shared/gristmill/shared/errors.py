"""The exception tree, branched by what the caller can do about it.

Every message says what, which id or value, the limit and the remedy. Errors of redis-py are not
wrapped: they pass through as they are, and whoever holds an idempotent call retries it.
"""


class GristmillError(Exception):
    """Root of every error that Gristmill raises on purpose."""


class InvalidRequest(GristmillError):
    """The request breaks a rule; the caller must change it. Nothing was submitted.

    Attributes:
        code: Which kind of rule, for programs; OpenAI's word where it has one.
    """

    code = "invalid_request"

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code or self.code


class IdConflict(InvalidRequest):
    """The id is already taken by a request with another body or endpoint."""


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
    """Nothing has this id, or it belongs to another tenant, which looks the same."""


class LimitReached(GristmillError):
    """A tenant is at its limit; it can wait until something of its own has finished."""


class NotReplicated(GristmillError):
    """The primary has the requests, but too few replicas do yet; submit them again, which is safe."""


class ResultExpired(GristmillError):
    """Neither a request nor a result exists under this id: never submitted, or its TTL ended."""


class SettingsError(GristmillError):
    """A setting is missing or contradicts another; the operator must change it."""


class LeaseLost(GristmillError):
    """The queue has given this worker's requests away; the worker must start over under a new name.

    Attributes:
        worker: The incarnation that held the lease.
    """

    def __init__(self, message: str, worker: str) -> None:
        super().__init__(message)
        self.worker = worker


class EngineError(GristmillError):
    """The engine could not answer, through no fault of the request that waited for it."""


class EngineUnavailable(EngineError):
    """The engine cannot take this request now (overloaded, unreachable, shutting down): try again later."""


class EngineHungUp(EngineError):
    """The engine lives and broke off this one request: another try of it counts."""


class EngineDied(EngineError):
    """The engine will answer nothing more; it must be started anew."""

"""What becomes of a request once the engine has answered or failed: the one place that decides ack or nack."""

import random
from dataclasses import dataclass
from typing import Any, Literal

from gristmill.shared.records import Claimed
from gristmill.worker.engine.interface import Response

MAX_SERVER_ERROR_ATTEMPTS = 2
"""A 500 while the engine lives is nearly always the request's own; one more try tells."""

MAX_REASON_CHARS = 500
"""Characters of an error that dead letters keep."""


@dataclass(frozen=True, slots=True)
class Ack:
    """Settle with the engine's answer."""

    status: Literal["succeeded", "failed"]


@dataclass(frozen=True, slots=True)
class Nack:
    """Give back for a retry."""

    error: dict[str, Any]


def verdict(claimed: Claimed, response: Response) -> Ack | Nack:
    """Decide by the answer's class, never by its text.

    2xx succeeded. 4xx is the request's own fault: failed, not retried. 5xx from a living engine is
    tried once more and then believed.
    """
    if response.status < 400:
        return Ack("succeeded")
    may_retry = claimed.attempt < min(MAX_SERVER_ERROR_ATTEMPTS, claimed.record.max_attempts)
    if response.status >= 500 and may_retry:
        return Nack({"code": "engine_error", "message": f"the engine answered {response.status}"})
    return Ack("failed")


def verdict_on_broken_connection(error: Exception) -> Nack:
    """Decide about a request on which a living server hung up: it is tried again, and that counts."""
    return Nack({"code": "connection_broken", "message": str(error)[:MAX_REASON_CHARS]})


def verdict_on_worker_error(error: Exception) -> Nack:
    """Decide about a request that an error in the worker itself stopped: it is tried again, and that counts."""
    return Nack({"code": "worker_error", "message": repr(error)[:MAX_REASON_CHARS]})


def backoff_s(attempt: int, base_s: float, max_s: float) -> float:
    """Return a wait with full jitter: uniform up to min(max, base * 2^(attempt - 1)).

    The rule and why it beats the alternatives: Brooker, "Exponential Backoff And Jitter", 2015.
    """
    return random.uniform(0, min(max_s, base_s * 2 ** (attempt - 1)))  # noqa: S311  # no secret

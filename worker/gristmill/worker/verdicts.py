"""Decide ack or nack for a request once the engine has answered or failed.

Only this module decides it; the runner calls it.
"""

import random
from dataclasses import dataclass
from typing import Any, Literal

from gristmill.shared.records import Claimed
from gristmill.worker.engine.interface import Response

MAX_SERVER_ERROR_ATTEMPTS = 2
"""Attempts of a request that gets a 5xx from a living engine. The request is nearly always the
cause; a second attempt confirms it."""

MAX_DOUBLINGS = 16
"""Attempts after which the bound of the wait grows no more."""

MAX_REASON_CHARS = 500
"""Most characters of an error that a dead letter keeps."""


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

    An answer below 400 means succeeded. A 4xx answer is the request's own fault: failed, without a
    retry.
    A 5xx answer from a living engine gets one retry; a second 5xx means failed.
    """
    if response.status < 400:
        return Ack("succeeded")
    may_retry = claimed.attempt < min(MAX_SERVER_ERROR_ATTEMPTS, claimed.record.max_attempts)
    if response.status >= 500 and may_retry:
        return Nack({"code": "engine_error", "message": f"the engine answered {response.status}"})
    return Ack("failed")


def verdict_on_broken_connection(error: Exception) -> Nack:
    """Return the nack for a request on which a living server hung up; the attempt counts."""
    return Nack({"code": "connection_broken", "message": str(error)[:MAX_REASON_CHARS]})


def verdict_on_unavailable(error: Exception) -> Nack:
    """Return the nack for a request that a server fails while it serves others."""
    return Nack({"code": "engine_unavailable", "message": str(error)[:MAX_REASON_CHARS]})


def verdict_on_worker_error(error: Exception) -> Nack:
    """Return the nack for a request that an error in the worker stopped; the attempt counts."""
    return Nack({"code": "worker_error", "message": repr(error)[:MAX_REASON_CHARS]})


def backoff_s(attempt: int, base_s: float, max_s: float) -> float:
    """Return seconds to wait, with full jitter: uniform up to min(max_s, base_s * 2^(attempt - 1)).

    The rule, and why it beats the alternatives, comes from Brooker, "Exponential Backoff And
    Jitter", 2015.
    """
    doublings = min(attempt - 1, MAX_DOUBLINGS)
    return random.uniform(0, min(max_s, base_s * 2.0**doublings))  # noqa: S311  # no secret

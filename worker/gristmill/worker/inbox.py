"""Admit an element of the inbox: make it a request, or a dead letter if it is invalid."""

import structlog

from gristmill.shared.errors import InvalidRequest, TooLargeForRedis
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying, retrying_sized
from gristmill.shared.request_json import request_from_json

log = structlog.get_logger()

RESERVED = "inbox-"
"""Beginning of the ids of elements without one; an element that chose such an id would take that of another."""


async def admit_element(
    queue: Queue, worker: str, token: str, element: bytes, max_request_bytes: int
) -> None:
    """Admit one element that a claim took from the inbox; a second call changes nothing.

    Args:
        queue: The queue.
        worker: The worker incarnation that claimed it.
        token: Name of the element, unique within that incarnation.
        element: Plain JSON, as a producer in any language pushed it.
        max_request_bytes: Most bytes of an accepted body.
    """
    default_id = f"{RESERVED}{token}"
    try:
        request = request_from_json(
            element, default_id=default_id, max_request_bytes=max_request_bytes
        )
        _check_id(request.id, default_id)
        await retrying_sized(
            lambda: queue.admit(worker, token, request), len(element), queue.is_answering
        )
    except (InvalidRequest, TooLargeForRedis) as error:
        evidence = {"error": str(error)}
        await retrying(lambda: queue.admit_garbage(worker, token, default_id, evidence))
        log.warning(
            "request.dead_lettered",
            queue=queue.keys.queue,
            id=default_id,
            reason="unreadable",
            error=str(error),
        )


def _check_id(request_id: str, default_id: str) -> None:
    if request_id.startswith(RESERVED) and request_id != default_id:
        raise InvalidRequest(
            f"its id {request_id} begins with {RESERVED}, which is kept for elements without an id; choose another id"
        )

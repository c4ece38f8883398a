"""Result: what a request ends in, and how a worker writes it down. No Redis here.

`lua/includes/finish.lua` puts the two halves of a record together; `docs/protocol.md` describes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

Status = Literal["succeeded", "failed", "cancelled", "expired"]

MAX_TOKENS = 10**9
"""What one request may have taken; a server that says more is not believed."""


def response_outcome(attempt: int, worker: str, status_code: int, body: bytes) -> bytes:
    """Return the part of a terminal record that carries an engine's answer.

    Args:
        attempt: Which attempt it was.
        worker: Who ran it.
        status_code: HTTP status of the answer.
        body: JSON bytes; embedded as they are.
    """
    return b'"attempt":%d,"worker":"%s","response":{"status_code":%d,"body":%s},"error":null' % (
        attempt,
        worker.encode(),
        status_code,
        body,
    )


@dataclass(frozen=True, slots=True)
class Result:
    """A terminal record.

    Attributes:
        id: The request's id.
        status: succeeded, failed, cancelled or expired.
        endpoint: What was asked for.
        attempt: The attempt that ended it; 0 if it never ran.
        enqueued_ms: Redis time at which it was accepted.
        finished_ms: Redis time at which it ended.
        status_code: HTTP status of the engine's answer, or None if the engine gave none.
        body: The engine's answer, the very JSON that `vllm serve` returns, or None. An object, as a rule: a server
            that is no vLLM may answer anything.
        error: `{"code", "message"}` where there is no answer.
        metadata: What the request carried.
        worker: Who ran it, or "".
    """

    id: str
    status: Status
    endpoint: str
    attempt: int
    enqueued_ms: int
    finished_ms: int
    status_code: int | None
    body: Any
    error: dict[str, Any] | None
    metadata: dict[str, Any] | None
    worker: str

    @classmethod
    def parse(cls, data: bytes) -> "Result":
        """Read `result:<id>`."""
        fields = orjson.loads(data)
        response = fields["response"] or {}
        return cls(
            id=fields["id"],
            status=fields["status"],
            endpoint=fields["endpoint"],
            attempt=fields["attempt"],
            enqueued_ms=fields["enqueued_ms"],
            finished_ms=fields["finished_ms"],
            status_code=response.get("status_code"),
            body=response.get("body"),
            error=fields["error"],
            metadata=fields["metadata"],
            worker=fields.get("worker", ""),
        )

    @classmethod
    def read(cls, request_id: str, data: bytes) -> "Result":
        """Read `result:<id>`; one that somebody has spoiled must not hide its neighbours."""
        try:
            return cls.parse(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"the record under result:{request_id} cannot be read: {error}"
            return cls.unreadable(request_id, message)

    @classmethod
    def unreadable(cls, request_id: str, message: str) -> "Result":
        """Stand in for a record that is there and cannot be read."""
        error = {"code": "unreadable", "message": message}
        return cls(request_id, "failed", "", 0, 0, 0, None, None, error, None, "")

    @property
    def is_success(self) -> bool:
        """Whether the request succeeded."""
        return self.status == "succeeded"

    @property
    def tokens(self) -> tuple[int, int]:
        """Prompt and output tokens as the engine counted them."""
        return token_counts(self.body)

    @property
    def failure(self) -> str:
        """One line that says why it did not succeed; "" if it did."""
        if self.is_success:
            return ""
        if self.error:
            return f"{self.error.get('code')}: {self.error.get('message')}"
        detail = mapping(self.body).get("error", self.body)
        message = detail.get("message", detail) if isinstance(detail, dict) else detail
        return f"HTTP {self.status_code}: {message}"


def token_counts(body: Any) -> tuple[int, int]:
    """Return prompt and output tokens of an engine's answer; the Responses API has other names for them."""
    usage = mapping(mapping(body).get("usage"))
    prompt_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
    output_tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    return token_count(prompt_tokens), token_count(output_tokens)


def token_count(value: Any) -> int:
    """Return a number of tokens; 0 for what cannot be one, whatever a server calls usage."""
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0


def mapping(value: Any) -> Mapping[str, Any]:
    """Return an object of an answer; an empty one for what is none."""
    return value if isinstance(value, dict) else {}

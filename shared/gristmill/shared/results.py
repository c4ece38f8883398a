"""Read a terminal record as a `Result`, and write a worker's part of it. No Redis here.

`lua/includes/finish.lua` puts the two halves of a record together; `docs/protocol.md` describes it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from gristmill.shared.answers import answer_text, finish_reason, mapping, message_in, token_counts
from gristmill.shared.one_line import one_line

Status = Literal["succeeded", "failed", "cancelled", "expired"]

_HEAD = re.compile(rb'\{"id":"[^"]*","status":"[a-z]+","endpoint":"[^"]*","tenant":"([^"]*)"')


def response_outcome(
    attempt: int,
    worker: str,
    status_code: int,
    body: bytes,
    made_by: bytes = b"{}",
    *,
    device_ms: int = 0,
) -> bytes:
    """Return the part of a terminal record that carries an engine's answer.

    Args:
        attempt: Number of the attempt, from 1.
        worker: Worker incarnation that ran it.
        status_code: HTTP status of the answer.
        body: JSON bytes of the answer, embedded unchanged.
        made_by: JSON object that says what made the answer; `Result` lists its names.
        device_ms: The request's share of the time of the engine's devices, in milliseconds.
    """
    return (
        b'"attempt":%d,"worker":"%s","made_by":%s,"device_ms":%d,"response":{"status_code":%d,"body":%s},"error":null'
        % (attempt, worker.encode(), made_by, device_ms, status_code, body)
    )


def _loads(data: bytes) -> Any:
    """Return the JSON of a record; read also NaN, control characters and bytes that are no UTF-8.

    Metadata of a producer in another language may have them.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data.decode(errors="replace"), strict=False)


def tenant_of_result(record: bytes) -> str | None:
    """Return the tenant of a terminal record; None if it has none, as those of earlier versions.

    Args:
        record: At least the first fields of a terminal record, as `lua/includes/finish.lua` writes them.
    """
    found = _HEAD.match(record)
    return found[1].decode() if found else None


@dataclass(frozen=True, slots=True)
class Result:
    """A terminal record.

    Attributes:
        id: The request's id.
        status: succeeded, failed, cancelled or expired.
        endpoint: Endpoint that the request named.
        attempt: The attempt that ended it; 0 if it never ran.
        enqueued_ms: Redis time at which it was accepted.
        finished_ms: Redis time at which it ended.
        status_code: HTTP status of the engine's answer, or None if the engine gave none.
        body: The engine's answer, the same JSON that `vllm serve` returns, or None. It is usually
            an object, but a server other than vLLM may return any JSON.
        error: `{"code", "message"}` if the engine gave no answer.
        metadata: Metadata of the request.
        worker: Worker incarnation that ran it, or "".
        tenant: Tenant of the request; "" in a record of a version before 0.1.0.
        made_by: What made the answer: `model`, `weights`, `engine`, `worker` and `seed`. A name is missing
            if its value is not known. Empty if no engine answered. A later version may add names.
        device_ms: The request's share of the time of the engine's devices, in milliseconds; 0 if no engine
            answered.
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
    tenant: str = ""
    made_by: Mapping[str, Any] = field(default_factory=dict)
    device_ms: int = 0

    @classmethod
    def parse(cls, data: bytes) -> "Result":
        """Read `result:<id>`."""
        fields = _loads(data)
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
            tenant=fields.get("tenant", ""),
            made_by=mapping(fields.get("made_by")),
            device_ms=fields.get("device_ms", 0),
        )

    @classmethod
    def read(cls, request_id: str, data: bytes) -> "Result":
        """Read `result:<id>`; return a damaged one as `unreadable`, so the others stay readable."""
        try:
            return cls.parse(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"the record under result:{request_id} cannot be read: {error}"
            return cls.unreadable(request_id, message)

    @classmethod
    def unreadable(cls, request_id: str, message: str) -> "Result":
        """Return a failed result for a record that exists but cannot be read."""
        error = {"code": "unreadable", "message": message}
        return cls(request_id, "failed", "", 0, 0, 0, None, None, error, None, "")

    @property
    def is_success(self) -> bool:
        """True if the request succeeded."""
        return self.status == "succeeded"

    @property
    def text(self) -> str | None:
        """The text of the answer; of several choices, that of the first.

        It is "" if the engine generated nothing. It is None if the request did not succeed, and for an
        answer without text: embeddings, scores, tokens, a tool call.
        """
        return answer_text(self.body) if self.is_success else None

    @property
    def finish_reason(self) -> str | None:
        """Why the text of a chat or a completion ended: "stop", "length" (it was cut), or another word of vLLM.

        It is None for a failure and for answers without choices.
        """
        return finish_reason(self.body) if self.is_success else None

    @property
    def tokens(self) -> tuple[int, int]:
        """Prompt and output tokens as the engine counted them."""
        return token_counts(self.body)

    @property
    def failure(self) -> str:
        """One line that says why the request did not succeed; "" if it did."""
        if self.is_success:
            return ""
        if self.error:
            return one_line(f"{self.error.get('code')}: {self.error.get('message')}")
        return one_line(f"HTTP {self.status_code}: {message_in(self.body)}")

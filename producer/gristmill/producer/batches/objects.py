"""The objects of OpenAI's Files and Batches API, and the records that Redis holds of them.

The names and the meaning of the public fields are OpenAI's
(https://platform.openai.com/docs/api-reference/batch/object); times are seconds since 1970.
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from gristmill.shared.request import Priority

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed",
    "failed", "expired", "cancelling", "cancelled",
]  # fmt: skip
FINAL_STATUSES: tuple[BatchStatus, ...] = ("completed", "failed", "expired", "cancelled")

Closing = Literal["completed", "expired", "cancelled", "failed"]
"""The status that a batch will have once its last rows are written."""

Mode = Literal["strict", "lenient"]
Order = Literal["completion", "input"]
UnknownFields = Literal["report", "refuse"]
Purpose = Literal["batch", "batch_output"]


class _ApiObject(BaseModel):
    model_config = ConfigDict(frozen=True)


class FileObject(_ApiObject):
    """A file, as clients see it."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"


class FileRecord(FileObject):
    """A file, as Redis holds it.

    Attributes:
        tenant: Owner of the file.
        path: Path of its bytes in the storage.
    """

    tenant: str
    path: str


class BatchError(_ApiObject):
    """What validation found wrong with a file or a line."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(_ApiObject):
    """The errors, or the warnings, of an input file."""

    object: Literal["list"] = "list"
    data: tuple[BatchError, ...] = ()


class RequestCounts(_ApiObject):
    """Lines of a batch, counted by how they ended.

    Attributes:
        total: Lines of the input.
        completed: Lines with an answer.
        failed: Lines with an error for an answer, or without an answer.
        cancelled: Lines that a cancel ended; OpenAI has no such count.
        expired: Lines that the completion window ended; OpenAI has no such count.
    """

    total: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0

    @property
    def finished(self) -> int:
        """Lines that have their row; it reaches `total` at the end."""
        return self.completed + self.failed + self.cancelled + self.expired


class InputTokensDetails(_ApiObject):
    """Prompt tokens that were in the prefix cache, as far as the engine says."""

    cached_tokens: int = 0


class OutputTokensDetails(_ApiObject):
    """Output tokens of the reasoning, as far as the engine says."""

    reasoning_tokens: int = 0


class BatchUsage(_ApiObject):
    """Tokens of the answers of a batch so far."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int = 0

    def plus(self, other: "BatchUsage") -> "BatchUsage":
        """Return the sum of both."""
        num_cached = (
            self.input_tokens_details.cached_tokens + other.input_tokens_details.cached_tokens
        )
        num_reasoning = (
            self.output_tokens_details.reasoning_tokens
            + other.output_tokens_details.reasoning_tokens
        )
        return BatchUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=num_cached),
            output_tokens=self.output_tokens + other.output_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=num_reasoning),
            total_tokens=self.total_tokens + other.total_tokens,
        )


class BatchObject(_ApiObject):
    """A batch, as clients see it.

    `mode`, `order`, `unknown_fields`, `warnings`, `retry_of`, `device_ms` and `waiting` are Gristmill's; the other fields are
    OpenAI's.

    Attributes:
        mode: strict: a bad line fails the file; lenient: it gets an error row and the rest runs.
        order: Order of the rows in the output file.
        unknown_fields: report: a body's field that the engine ignores is a warning; refuse: its line is bad.
        warnings: The first lines with such fields; None for none.
        retry_of: Id of the batch whose failed lines this one repeats.
        device_ms: Share of the time of the engines' devices of all lines so far, in milliseconds.
        waiting: Why no further lines are submitted now; None if they are. In Redis as of the last commit.
    """

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None = None
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    usage: BatchUsage = BatchUsage()
    metadata: dict[str, str] | None = None
    mode: Mode = "strict"
    order: Order = "completion"
    unknown_fields: UnknownFields = "report"
    warnings: BatchErrors | None = None
    retry_of: str | None = None
    device_ms: int = 0
    waiting: BatchError | None = None


class BatchRecord(BatchObject):
    """A batch, as Redis holds it.

    Attributes:
        tenant: Owner of the batch.
        priority: Lane of requests that set no priority.
        max_priority: Highest lane that its lines may ask for, as of its creation.
        output_expires_after_s: Seconds after which its output and error file are deleted.
        closing: Status that the batch will have once its last rows are written; None while it runs on.
        traceparent: Context of the call that created it, to which the traces of its lines link; "" for none.
        queues: Queues that its lines may go to, as of its creation; the first has the batch. Empty for one queue.
        declared: Model -> one of these queues, for models that may have no worker.
        children: Queues that each run a part of its lines as a batch of their own; empty if it runs its lines itself.
        home: Queue of the batch whose lines this one runs, which makes it a child; None for a batch of a client.
    """

    tenant: str
    priority: Priority = "normal"
    max_priority: Priority = "high"
    output_expires_after_s: int | None = None
    closing: Closing | None = None
    traceparent: str = ""
    queues: tuple[str, ...] = ()
    declared: dict[str, str] = {}
    children: tuple[str, ...] = ()
    home: str | None = None

    @property
    def is_final(self) -> bool:
        """True once the batch has ended."""
        return self.status in FINAL_STATUSES

    def is_of(self, tenant: str) -> bool:
        """Return whether a tenant may see the batch: it owns the batch, and the batch is no child."""
        return self.tenant == tenant and self.home is None


class Page(_ApiObject):
    """A page of a list, in OpenAI's form."""

    object: Literal["list"] = "list"
    data: tuple[Any, ...]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


def page(found: Sequence[FileObject | BatchObject], limit: int) -> Page:
    """Return a page of up to `limit` objects; if more were found, the page says so."""
    data = tuple(found[:limit])
    return Page(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(found) > limit,
    )


def public_fields(record: FileRecord | BatchRecord) -> dict[str, Any]:
    """Return the fields of a record that clients may see."""
    kind = FileObject if isinstance(record, FileRecord) else BatchObject
    return record.model_dump(include=set(kind.model_fields))

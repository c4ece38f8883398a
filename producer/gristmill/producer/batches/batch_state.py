"""The state of one batch: its record, and the checkpoint from which the next steward goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import orjson

from gristmill.producer.batches.objects import BatchRecord, BatchStatus

Phase = Literal["validate", "execute", "follow", "finalize", "announce"]
"""The next step of a batch; a steward's job has the same name. Only a batch with children has the phase `follow`."""

Work = Literal["steps", "files", "webhooks"]
"""A kind of work. Tenants take turns in each of them: steps are RQ's jobs, one at a time; stewards write files and
call webhooks beside them."""

WORK_OF: Mapping[Phase, Work] = {
    "validate": "steps",
    "execute": "steps",
    "follow": "files",
    "finalize": "files",
    "announce": "webhooks",
}

_PHASES: Mapping[BatchStatus, Phase] = {
    "validating": "validate",
    "in_progress": "execute",
    "finalizing": "finalize",
}


class ChildPlan(NamedTuple):
    """The lines that a child runs.

    Attributes:
        path: Path of the object with the number of the queue of each line, two bytes each; all children read it.
        queue_number: Number of the queue of the child.
        num_lines: Lines with this number.
    """

    path: str
    queue_number: int
    num_lines: int


class ByteRange(NamedTuple):
    """The place of a line in the input, in bytes."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Validated:
    """How far the input of a batch is validated.

    Attributes:
        line: Number of the last line that was checked.
        offset: Byte at which the next line begins.
        num_bad: Bad lines so far.
        model: Model of the first good line; None before it.
        errors: The first errors, as the fields of `BatchError`.
        custom_ids: Paths of the objects with the digests of the custom_ids, in the order of the lines.
        warnings: The first warnings, as the fields of `BatchError`.
        num_warned: Lines with a warning so far.
        queues: Paths of the objects that have the number of each line's queue, in the order of the lines.
    """

    line: int = 0
    offset: int = 0
    num_bad: int = 0
    model: str | None = None
    errors: Sequence[Mapping[str, Any]] = ()
    custom_ids: Sequence[str] = ()
    warnings: Sequence[Mapping[str, Any]] = ()
    num_warned: int = 0
    queues: Sequence[str] = ()

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> "Validated":
        """Read the fields of its JSON."""
        names = ("errors", "warnings", "custom_ids", "queues")
        lists = {name: tuple(fields.get(name, ())) for name in names}
        return cls(**{**fields, **lists})


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The point from which the next slice of a batch goes on.

    Attributes:
        line: Number of the last line that was read.
        offset: Byte at which the next line begins.
        is_read: True once the whole input was read.
        outstanding: Lines that were read and have no row yet, each with its `ByteRange`.
        skipped: Path of the object that lists the lines which execution leaves out, because validation gave them a
            row; "" for no such lines.
        has_parts: True while parts lie in the storage.
        validated: How far validation has come; where execution begins does not depend on it.
        planned: Queue -> what its child runs, until all children exist.
        child_lines: What a child runs; None for a batch that is no child, which runs all lines.
    """

    line: int = 0
    offset: int = 0
    is_read: bool = False
    outstanding: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    skipped: str = ""
    has_parts: bool = False
    validated: Validated = Validated()
    planned: Mapping[str, ChildPlan] = field(default_factory=dict)
    child_lines: ChildPlan | None = None

    def dump(self) -> bytes:
        """Return it as JSON."""
        ranges = {number: (start, size) for number, (start, size) in self.outstanding.items()}
        plans = {queue: tuple(plan) for queue, plan in self.planned.items()}
        own = self.child_lines and tuple(self.child_lines)
        plain = replace(self, outstanding=ranges, planned=plans, child_lines=own)  # type: ignore[arg-type]  # orjson knows no NamedTuple
        return orjson.dumps(plain, option=orjson.OPT_NON_STR_KEYS)

    @classmethod
    def parse(cls, data: bytes) -> "Checkpoint":
        """Read the JSON that `dump` returned."""
        fields = orjson.loads(data)
        ranges = fields.pop("outstanding", {})
        outstanding = {int(number): ByteRange(*place) for number, place in ranges.items()}
        validated = Validated.parse(fields.pop("validated", {}))
        plans = fields.pop("planned", {})
        planned = {queue: ChildPlan(*plan) for queue, plan in plans.items()}
        own = fields.pop("child_lines", None)
        return cls(
            **fields, outstanding=outstanding, validated=validated, planned=planned,
            child_lines=ChildPlan(*own) if own else None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BatchState:
    """All that Redis holds about one batch.

    Attributes:
        record: The batch as of its last commit.
        checkpoint: The checkpoint of that commit.
        is_cancelled: True if a client has cancelled it.
        is_announced: True if its end was sent to the tenant's webhook, or the tenant has no webhook.
        num_commits: Commits so far.
        num_slices: Slices that stewards began.
        problem: Error of the last slice if it failed, else "". Only operators see it, since it may name paths.
    """

    record: BatchRecord
    checkpoint: Checkpoint
    is_cancelled: bool
    is_announced: bool
    num_commits: int
    num_slices: int
    problem: str

    @classmethod
    def parse(cls, info: Mapping[bytes, bytes]) -> "BatchState":
        """Read the fields of the hash `batch_record:<batch>`."""
        record = BatchRecord.model_validate_json(info[b"record"])
        is_cancelled = b"cancelling_at" in info
        if is_cancelled and record.status in ("validating", "in_progress"):
            cancelling_at = int(info[b"cancelling_at"])
            record = record.model_copy(update={"cancelling_at": cancelling_at})
        return cls(
            record=record,
            checkpoint=Checkpoint.parse(info.get(b"checkpoint", b"{}")),
            is_cancelled=is_cancelled,
            is_announced=b"announced_at" in info,
            num_commits=int(info.get(b"commit", b"0").partition(b"|")[0]),
            num_slices=int(info.get(b"slices", 0)),
            problem=info.get(b"problem", b"").decode(errors="replace"),
        )

    @property
    def phase(self) -> Phase | None:
        """The next step of the batch, or None.

        A batch that has ended is finalized again to delete its parts. That happens after the webhook,
        a minute later or more: a Redis that loses its last moments may need the parts again. A child that has
        ended waits for its parent, which reads its parts and deletes them.
        """
        if not self.record.is_final:
            return phase_of(self.record)
        if self.record.home:
            return None
        if not self.is_announced:
            return "announce"
        return "finalize" if self.checkpoint.has_parts else None

    @property
    def work(self) -> Work | None:
        """The kind of work of the next step, or None."""
        return WORK_OF[self.phase] if self.phase else None


def phase_of(record: BatchRecord) -> Phase | None:
    """Return the next step of a batch that has not ended; None if it has."""
    if record.children and record.status == "in_progress":
        return "follow"
    return _PHASES.get(record.status)

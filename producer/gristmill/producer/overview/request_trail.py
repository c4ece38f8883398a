"""Follow one request through the system: submit, waits, attempts, end. It reads no prompt and no answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gristmill.shared.answers import mapping
from gristmill.shared.dead_letters import DeadLetter
from gristmill.shared.operations import State
from gristmill.shared.pauses import pause_in_words
from gristmill.shared.queue import Queue
from gristmill.shared.records import Record
from gristmill.shared.results import Result
from gristmill.shared.snapshot import HEADER_BYTES, read_together


@dataclass(frozen=True, slots=True)
class TrailStep:
    """One step of a request.

    Attributes:
        name: Name of the step, a word or two.
        at_ms: Redis time of the step; None if Redis does not keep it.
        detail: More about it, in words without any text of the prompt or the answer.
        is_open: True if the step goes on.
    """

    name: str
    at_ms: int | None
    detail: str
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Trail:
    """The way of one request through the system.

    Attributes:
        id: Its id.
        queue: Its queue.
        state: queued, delayed, running, done or unknown.
        now_ms: Redis time of the read.
        record: Its stored form without metadata and body; None once it has ended.
        num_bytes: Bytes of its stored form; 0 once it has ended.
        worker: Worker that holds it, or that ended it; "" for none.
        deliveries: Number of its claims so far.
        uncounted: Claims that do not count as attempts, because the worker gave the request back untried.
        crashes: Engine deaths that it saw.
        delayed_until_ms: Redis time at which workers may claim it; None if it is not delayed.
        result: Its terminal record without body and metadata; None before its end.
        dead: Its dead letter, without the request; None if it has none.
        pause: Its pause in words; "" if it is not paused.
        steps: The fields above as steps, earliest first.
    """

    id: str
    queue: str
    state: State
    now_ms: int
    record: Record | None = None
    num_bytes: int = 0
    worker: str = ""
    deliveries: int = 0
    uncounted: int = 0
    crashes: int = 0
    delayed_until_ms: int | None = None
    result: Result | None = None
    dead: DeadLetter | None = None
    pause: str = ""
    steps: Sequence[TrailStep] = field(default=())

    @property
    def is_known(self) -> bool:
        """True if the queue has its request, its result or its dead letter."""
        return self.state != "unknown" or self.dead is not None

    @property
    def tenant(self) -> str:
        """Its tenant; "" if it is not known."""
        return self.record.tenant if self.record else self.result.tenant if self.result else ""

    @property
    def batch(self) -> str:
        """Its batch; "" if it is in none, or if it has ended."""
        return self.record.batch if self.record else ""


async def read_trail(queue: Queue, request_id: str) -> Trail:
    """Return the way of a request, in three calls; `is_known` is False if the queue has nothing of it."""
    ((state, worker),) = await queue.status([request_id])
    stored = await _read_stored(queue, request_id)
    (result,) = await queue.results([request_id])
    record = stored.record
    trail = Trail(
        id=request_id,
        queue=queue.keys.queue,
        state=state,
        worker=worker or (result.worker if result else ""),
        result=_without_texts(result) if result else None,
        pause=await _pause(queue, record.batch) if record else "",
        **stored._asdict(),
    )
    return replace(trail, steps=_steps(trail))


class _Stored(NamedTuple):
    """What the keys of the queue have of a request, beside its result; see `Trail`."""

    now_ms: int
    record: Record | None
    num_bytes: int
    deliveries: int
    uncounted: int
    crashes: int
    delayed_until_ms: int | None
    dead: DeadLetter | None


async def _read_stored(queue: Queue, request_id: str) -> _Stored:
    keys = queue.keys
    (seconds, micros), header, num_bytes, attempts, delayed, blob = await read_together(
        queue,
        ("TIME",),
        ("GETRANGE", keys.request(request_id), 0, HEADER_BYTES),
        ("STRLEN", keys.request(request_id)),
        ("HGET", keys.attempts, request_id),
        ("ZSCORE", keys.delayed, request_id),
        ("HGET", keys.dead_letter_info, request_id),
    )
    return _Stored(
        int(seconds) * 1000 + int(micros) // 1000,
        _record(header),
        num_bytes,
        *_attempts(attempts),
        delayed_until_ms=int(float(delayed)) if delayed else None,
        dead=replace(DeadLetter.parse(request_id.encode(), blob), record=b"") if blob else None,
    )


async def _pause(queue: Queue, batch: str) -> str:
    return pause_in_words(queue.keys.queue, await queue.pauses.all(), batch) or ""


def _record(header: bytes) -> Record | None:
    """Return a record from its header; None if it is missing or cannot be read."""
    line = header.partition(b"\n")[0]
    try:
        return Record.parse(line + b"\n\n") if line else None
    except (ValueError, IndexError):
        return None


def _attempts(text: bytes | None) -> tuple[int, int, int]:
    parts = (text or b"0|0|0").split(b"|")
    deliveries, uncounted, crashes = (int(part) for part in parts)
    return deliveries, uncounted, crashes


def _without_texts(result: Result) -> Result:
    """Return a result without metadata and answer; of the answer only vLLM's `usage` stays."""
    return replace(result, metadata=None, body={"usage": mapping(result.body).get("usage")})


def _steps(trail: Trail) -> list[TrailStep]:
    return [*_submit(trail), *_tries(trail), *_wait(trail), *_end(trail)]


def _submit(trail: Trail) -> list[TrailStep]:
    record, result = trail.record, trail.result
    if record:
        model = f", model {record.model}" if record.model else ""
        origin = f", requeued from {record.origin}" if record.origin else ""
        tokens = f"{record.prompt_tokens:,} + {record.max_tokens:,} tokens estimated"
        detail = f"{record.endpoint}{model}, lane {record.priority}, {tokens}{origin}"
        return [TrailStep("submitted", record.enqueued_ms, detail)]
    if result and result.enqueued_ms:
        return [TrailStep("submitted", result.enqueued_ms, result.endpoint)]
    return []


def _tries(trail: Trail) -> list[TrailStep]:
    num_tried = trail.deliveries - trail.uncounted - (trail.state == "running")
    steps = []
    if num_tried > 0:
        steps.append(TrailStep("tried", None, f"{num_tried} attempts did not end it"))
    if trail.uncounted:
        steps.append(TrailStep("given back", None, f"{trail.uncounted} claims came back untried"))
    if trail.crashes:
        what = "it saw this many engine deaths, so it runs as a suspect"
        steps.append(TrailStep("suspected", None, f"{trail.crashes}: {what}"))
    return steps


def _wait(trail: Trail) -> list[TrailStep]:
    if trail.state == "running":
        return [TrailStep("running", None, f"worker {trail.worker} holds it", is_open=True)]
    if trail.state == "delayed":
        at_ms = trail.delayed_until_ms
        return [TrailStep("delayed", at_ms, "workers may claim it from this moment", is_open=True)]
    if trail.state == "queued":
        return [TrailStep("waiting", None, trail.pause or "for a worker's claim", is_open=True)]
    return []


def _end(trail: Trail) -> list[TrailStep]:
    steps = []
    if result := trail.result:
        took_s = (result.finished_ms - result.enqueued_ms) / 1000
        worker = f", worker {result.worker}" if result.worker else ""
        code = f", HTTP {result.status_code}" if result.status_code else ""
        detail = f"attempt {result.attempt}{worker}{code}, {took_s:,.1f} s after its submit"
        steps.append(TrailStep(result.status, result.finished_ms, detail))
    if dead := trail.dead:
        detail = f"{dead.reason}, attempt {dead.attempt}, engine deaths {dead.crashes}"
        steps.append(TrailStep("dead letter", dead.at_ms, detail))
    return steps

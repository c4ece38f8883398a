"""Hold the requests that one worker process has claimed from one queue, until each is settled.

A claim adds requests (`queue_source.py`), and the runner runs them (`runner.py`). Each request can
ack, nack or release itself. This is the only list of them in the worker.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import structlog

from gristmill.shared.chunking import chunks
from gristmill.shared.event_streams import STREAMED, stream_options
from gristmill.shared.operations import MAX_CLAIM, Claim, Settlement, SuspectRoom, Use
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed, Record
from gristmill.shared.redis_retry import retrying
from gristmill.shared.results import response_outcome
from gristmill.worker import metrics
from gristmill.worker.engine.interface import OnEvent, Response
from gristmill.worker.engine.refusals import refused_by_redis
from gristmill.worker.engine_load import EngineLoad
from gristmill.worker.event_buffers import EventBuffer, EventBuffers
from gristmill.worker.provenance import Provenance
from gristmill.worker.request_spans import spans_of

log = structlog.get_logger()

IsServed = Callable[[str, str], Awaitable[bool]]
"""Returns whether some live worker of the queue serves a model and an endpoint."""


class ClaimedRequest:
    """One claimed request, which can settle itself.

    Attributes:
        claimed: The request as the claim returned it.
        worker: The worker incarnation that claimed it.
        claimed_at: Moment of the claim, in monotonic seconds.
        queue_wait_s: Seconds from submit to claim, by Redis's clock.
        task: The task that runs it; None until it has started.
        stream_options: The `stream_options` of its caller; None if it does not stream.
        spans: Records the spans of this claim; None if it has no trace, or the worker records none.
    """

    __slots__ = (
        "_events", "_in_flight", "claimed", "claimed_at", "queue_wait_s", "spans", "stream_options", "task",
        "worker",
    )  # fmt: skip

    def __init__(
        self, claimed: Claimed, worker: str, queue_wait_s: float, in_flight: "InFlight"
    ) -> None:
        self.claimed = claimed
        self.worker = worker
        self.claimed_at = time.monotonic()
        self.queue_wait_s = queue_wait_s
        self.task: asyncio.Task[None] | None = None
        self._in_flight = in_flight
        self.spans = spans_of(claimed, worker, self.queue)
        self.stream_options = stream_options(claimed.record.facts)
        self._events: EventBuffer | None = None
        if self.stream_options is not None and claimed.record.endpoint in STREAMED:
            self._events = in_flight.events.open(claimed, worker)

    @property
    def id(self) -> str:
        """The request's id."""
        return self.claimed.id

    @property
    def record(self) -> Record:
        """The record of the request."""
        return self.claimed.record

    @property
    def queue(self) -> str:
        """Name of the queue that the request came from."""
        return self._in_flight.queue.keys.queue

    @property
    def is_held(self) -> bool:
        """True until the request is settled, released, aborted or given to another worker."""
        return self._in_flight.holds(self)

    def started(self, task: "asyncio.Task[None]") -> None:
        """Note the task that runs the request; the request counts as running until it ends."""
        self.task = task
        self._in_flight.count_started(task)

    @property
    def on_event(self) -> OnEvent | None:
        """Takes the events of the answer; None if the request does not stream."""
        return self._events.add if self._events else None

    async def finish_events(self, status: Literal["succeeded", "failed"]) -> None:
        """Append the last events of the answer and how it ends; call it before `ack`.

        A failure before the first event leaves no stream: the result says all.
        """
        if self._events and (self._events.has_events or status == "succeeded"):
            await self._events.finish(status)

    def close_events(self) -> None:
        """Append no more events."""
        if self._events:
            self._events.close()

    def ack(
        self, status: Literal["succeeded", "failed"], response: Response, provenance: Provenance
    ) -> None:
        """End the request with the engine's answer.

        The `AckWriter` writes the record within milliseconds if Redis answers.

        Args:
            status: How the request ends.
            response: The engine's answer.
            provenance: What makes the answers of this worker.
        """
        made_by = provenance.made_by(self.record, response)
        use = Use(
            self.record.tenant,
            provenance.model_of(self.record, response),
            response.cached_tokens,
            response.device_ms,
        )
        claimed = self.claimed
        settlement = Settlement(
            claimed.id,
            claimed.delivery,
            status,
            self._outcome(response, made_by, use.device_ms),
            response.prompt_tokens,
            response.output_tokens,
            usage=use,
            fence=claimed.fence,
        )
        metrics.settling.inc()
        if self.spans:
            self.spans.settling("ack", status=status)
        self._in_flight.finished.put_nowait(Finished(self, settlement, made_by))

    def refused_by_redis(self, finished: "Finished") -> "Finished":
        """Return the end of the request as failed, because Redis does not store its answer."""
        settlement = finished.settlement
        response = refused_by_redis(len(settlement.outcome))
        device_ms = settlement.usage.device_ms if settlement.usage else 0
        outcome = self._outcome(response, finished.made_by, device_ms)
        return finished._replace(settlement=replace(settlement, status="failed", outcome=outcome))

    def _outcome(self, response: Response, made_by: bytes, device_ms: int) -> bytes:
        return response_outcome(
            self.claimed.attempt,
            self.worker,
            response.status,
            response.body,
            made_by,
            device_ms=device_ms,
        )

    async def nack(self, error: Mapping[str, Any], delay_ms: int) -> str:
        """Give the request back for a retry, or end it if its attempts are used up.

        Args:
            error: Reason; a dead letter keeps it.
            delay_ms: Milliseconds until the retry.

        Returns:
            `retried`; `dead_lettered` if the request has ended; `stale` if this worker no longer
            held it, and nothing changed.
        """
        in_flight, claimed = self._in_flight, self.claimed
        if self.spans:
            self.spans.settling("nack", delay_ms=delay_ms, error=str(error.get("code", "")))
        code = await retrying(lambda: in_flight.queue.nack(self.worker, claimed, delay_ms, error))
        if self.spans:
            self.spans.settled(code=code)
        in_flight.forget([claimed])
        metrics.retried.inc()
        return code

    async def is_served(self) -> bool:
        """Return whether some live worker of the queue serves the request's model and endpoint."""
        return await self._in_flight.is_served(self.record.model, self.record.endpoint)

    async def release(self, delay_ms: int = 0) -> None:
        """Return the request to the front of its lane; this attempt does not count.

        Args:
            delay_ms: Milliseconds before which no worker claims it.
        """
        await self._in_flight.release([self], delay_ms)


class Finished(NamedTuple):
    """A request that ended, until Redis has its result.

    Attributes:
        request: The request.
        settlement: Its end, as `ack` writes it.
        made_by: JSON object that says what made the answer.
    """

    request: ClaimedRequest
    settlement: Settlement
    made_by: bytes

    @property
    def num_bytes(self) -> int:
        """Bytes that `ack` reads and writes for this request."""
        return len(self.settlement.outcome) + len(self.request.record.body)


class InFlight:
    """The requests of one queue that this process holds.

    Each queue has its own `InFlight`, because ids are unique within one queue only.

    Args:
        queue: The queue; nacks and releases go to it.
        load: Counter of the running requests of all queues.
        is_served: Asks what the live workers of the queue serve.
        events: Gets the events of the streamed answers.

    Attributes:
        queue: The queue.
        is_served: As given.
        events: As given.
        num_running: Requests of this queue in the engine.
        finished: Ended requests for the `AckWriter`.
    """

    def __init__(
        self, queue: Queue, load: EngineLoad, is_served: IsServed, events: EventBuffers
    ) -> None:
        self.queue = queue
        self.is_served = is_served
        self.events = events
        self._load = load
        self._requests: dict[str, ClaimedRequest] = {}
        self.num_running = 0
        self.finished: asyncio.Queue[Finished] = asyncio.Queue()

    @property
    def requests(self) -> list[ClaimedRequest]:
        """All requests, in the order of their claims."""
        return list(self._requests.values())

    @property
    def suspects(self) -> list[ClaimedRequest]:
        """The requests that were in flight when an engine or a worker died."""
        return [request for request in self._requests.values() if request.claimed.crashes]

    def suspect_room(self, width: int) -> SuspectRoom:
        """Return how many more suspects a claim may take, if `width` may run at the same time.

        If `width` is 0, the claim takes no suspect element of the inbox either.
        """
        suspects = self.suspects
        runs_alone = any(request.claimed.crashes > 1 for request in suspects)
        max_new = 0 if runs_alone else max(0, width - len(suspects))
        return SuspectRoom(max_new, bool(suspects) or width == 0)

    def add(self, claim: Claim, worker: str) -> list[ClaimedRequest]:
        """Add the requests that a claim returned, and return them."""
        added = []
        for claimed in claim.claimed:
            wait_s = max(0.0, (claim.now_ms - claimed.record.enqueued_ms) / 1000)
            metrics.queue_wait.observe(wait_s)
            request = ClaimedRequest(claimed, worker, wait_s, self)
            if request.spans:
                request.spans.waited(claimed.record.enqueued_ms, claim.now_ms)
            added.append(request)
        self._requests |= {request.id: request for request in added}
        metrics.claimed.inc(len(added))
        return added

    def holds(self, request: ClaimedRequest) -> bool:
        """Return whether the worker still holds this claim of the request."""
        return self._requests.get(request.id) is request

    def count_started(self, task: "asyncio.Task[None]") -> None:
        """Count a running request until its task ends."""
        self.num_running += 1
        self._load.add()
        task.add_done_callback(self._ended)

    def forget(self, deliveries: Iterable[Claimed | Settlement]) -> None:
        """Drop settled or released requests, unless the worker has claimed the id again since."""
        for done in deliveries:
            request = self._requests.get(done.id)
            if request and request.claimed.fence == done.fence:
                del self._requests[done.id]
                if request.claimed.crashes:  # the batcher may now claim the next suspect
                    self._load.wake()

    def abort(self, ids: Iterable[str]) -> list[str]:
        """Drop requests that ended elsewhere, and cancel their tasks.

        It drops a request whatever the number of its delivery.

        Returns:
            The ids that this process held.
        """
        aborted = [found for each in ids if (found := self._requests.pop(each, None))]
        cancel(aborted)
        return [request.id for request in aborted]

    async def release(self, requests: Sequence[ClaimedRequest], delay_ms: int = 0) -> None:
        """Return requests to the front of their lanes; the attempts do not count.

        With a delay, no worker claims them before it is over. The last chunk goes back first, so the requests keep their order.
        """
        for chunk in reversed(list(chunks(requests, MAX_CLAIM))):
            worker, claimed = chunk[0].worker, [request.claimed for request in chunk]
            traced = [request.spans for request in chunk if request.spans]
            for spans in traced:
                spans.settling("release", delay_ms=delay_ms)
            released = await retrying(partial(self.queue.release, worker, claimed, delay_ms))
            for spans in traced:
                spans.settled()
            metrics.released.inc(released)
            self.forget(claimed)

    async def release_unknown(self, worker: str) -> None:
        """Release requests that the queue counts for this worker and that the worker lacks.

        There are two causes. A power failure or a failover made Redis lose its last writes, and
        settlements were among them. Or the worker cancelled a claim that Redis had granted. Call it
        while no claim runs.
        """
        counted = await retrying(lambda: self.queue.in_flight(worker))
        known = {(each.id, each.claimed.delivery) for each in self._requests.values()}
        unknown = [delivery for delivery in counted if delivery not in known]
        for chunk in chunks(unknown, MAX_CLAIM):
            await retrying(partial(self.queue.release, worker, chunk))
        if unknown:
            log.warning(
                "requests.unknown",
                queue=self.queue.keys.queue,
                worker=worker,
                num_released=len(unknown),
            )

    def _ended(self, _: "asyncio.Task[None]") -> None:
        self.num_running -= 1
        self._load.remove()


def cancel(requests: Iterable[ClaimedRequest]) -> "list[asyncio.Task[None]]":
    """Cancel the running tasks of these requests; return the tasks that will end soon."""
    tasks = [each.task for each in requests if each.task and not each.task.done()]
    for task in tasks:
        task.cancel()
    return tasks

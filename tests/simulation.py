"""Workers in simulated time: true claims from a true queue, true decisions, engines that step when told to.

Nothing waits and no clock is read, so a run is the same on every machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from queues import settlement

from gristmill.shared.operations import ClaimTerms
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.worker.admission.capacity import Capacity, Demand
from gristmill.worker.admission.room import Admission
from gristmill.worker.batch_policy import BatchPolicy, claim_size, claim_tokens
from gristmill.worker.engine import EngineStats, Response
from gristmill.worker.engine.stub_batch import Sequence as Running
from gristmill.worker.engine.stub_batch import StubBatch

POLICY = BatchPolicy("continuous", size=64, timeout_s=0)
STEP_S = 0.03
"""Seconds of a tick."""


@dataclass
class SimulatedWorker:
    """One worker and its engine.

    Attributes:
        queue: Where it claims.
        name: Its registered name.
        capacity: What it believes of its engine.
        batch: The engine.
        period: Ticks of one step.
        running: Requests that ran, a sample a step, while there was something to claim.
        usage: Used share of the cache, likewise.
        last_end: Tick of its last end.
        num_prefills: Steps in which requests began.
    """

    queue: Queue
    name: str
    capacity: Capacity
    batch: StubBatch
    period: int = 1
    running: list[int] = field(default_factory=list)
    usage: list[float] = field(default_factory=list)
    last_end: int = 0
    num_prefills: int = 0

    def __post_init__(self) -> None:
        self._admission = Admission(self.capacity, self._stats, 2**30)
        self._demand = Demand()
        self._claimed: dict[Running, Claimed] = {}
        self._leave: dict[Running, Callable[[], None]] = {}
        self._num_claims = 0

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing."""
        return not self._claimed

    async def feed(self, tick: int) -> None:
        """Claim until the engine has no room, or the queue nothing."""
        while True:
            room = self._admission.room([], self._demand, tick * STEP_S)
            size = claim_size(
                POLICY, running=len(self._claimed), gathered=0, room=room, demand=self._demand
            )
            if not size:
                return
            self._num_claims += 1
            tokens = claim_tokens(POLICY, room, 2**40)
            nonce = f"{self.name}-{self._num_claims}"
            claim = await self.queue.claim(self.name, nonce, size, ClaimTerms(max_tokens=tokens))
            stats = await self.queue.stats()
            self._demand = Demand(stats.counters["queued"], len(stats.workers))
            for item in claim.claimed:
                self._start(item)
            if not claim.claimed:
                return

    async def step(self, tick: int) -> None:
        """Let the engine step, and settle what ended."""
        if self._demand.num_queued:
            self.running.append(self.batch.num_running)
            self.usage.append(self.batch.usage)
        ended = self.batch.step()
        self.num_prefills += any(each.num_output_tokens == 1 for each in self._claimed)
        items = [self._end(sequence) for sequence in ended]
        if items:
            self.last_end = tick
            await self.queue.ack(self.name, [settlement(item) for item in items])

    def _start(self, item: Claimed) -> None:
        """Run what the body says: output tokens, of which max_tokens is only the limit."""
        sequence = Running(item.record.prompt_tokens, int(item.record.body))
        self._claimed[sequence] = item
        self._leave[sequence] = self._admission.enter(item.record)
        self.batch.add(sequence)

    def _end(self, sequence: Running) -> Claimed:
        item = self._claimed.pop(sequence)
        self._leave.pop(sequence)()
        response = Response(
            200, b"", prompt_tokens=sequence.prompt_tokens, output_tokens=sequence.max_tokens
        )
        self._admission.learn(item.record, response)
        return item

    def _stats(self) -> EngineStats:
        return EngineStats(
            running=self.batch.num_running,
            waiting=self.batch.num_waiting,
            kv_cache_usage=self.batch.usage,
            preemptions=self.batch.num_preemptions,
            output_tokens=self.batch.num_output_tokens,
        )


async def simulate(workers: Sequence[SimulatedWorker]) -> int:
    """Run until the queue is empty and all are idle; returns the ticks that it took."""
    tick = 0
    for worker in workers:
        await worker.feed(tick)
    while not all(worker.is_idle for worker in workers):
        tick += 1
        for worker in workers:
            if tick % worker.period == 0:
                await worker.step(tick)
                await worker.feed(tick)
    return tick

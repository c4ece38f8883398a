"""Random histories of a queue against a model of it, on true servers.

The model says what each operation must answer and where each id is afterwards. It shares no code with
the scripts: it knows what `docs/protocol.md` promises. Workers freeze, lose their lease and come back
late; every call may be sent twice; replies get lost.

A longer run: `GRISTMILL_FUZZ_EXAMPLES=2000 pytest tests/integration/test_queue_state_machine.py
--timeout=0`. A failure prints the steps and a blob to repeat it (`@reproduce_failure`).
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from queues import BODY, ERROR, a_request, end_lease, make_due, settlement

from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.errors import LeaseLost
from gristmill.shared.operations import (
    ANY_LANE,
    Claim,
    ClaimTerms,
    LaneRoom,
    Limits,
    Scheduling,
    SchedulingPolicy,
    SuspectRoom,
)
from gristmill.shared.pauses import WHOLE_QUEUE, batch_scope
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.shared.request import Request

EXAMPLES = int(os.environ.get("GRISTMILL_FUZZ_EXAMPLES", "40"))
MAX_STEPS = 60
CANDIDATES = 3
HOUR_S = 3600
LANES = ("suspect", "high", "normal", "low")
TERMINAL = ("succeeded", "failed", "cancelled", "expired")
MAX_WORKERS = 4
MAX_INBOX = 16
MAX_WAITING_EXAMINED = 100
"""Waiting requests of which one claim examines all, even if it has to move or park each of them."""

STREAM = "!stream"
"""A fact that a worker must understand."""

pick = st.integers(0, 63)
"""Chooses from a list by its remainder, so that shrinking leads to the first element."""

repeats = st.sampled_from(["once", "twice", "lost reply"])


@dataclass
class Item:
    """What the model knows about one id."""

    request: Request
    state: str = "waiting"  # waiting, delayed, held, one of TERMINAL, or forgotten
    worker: str = ""
    delivery: int = 0
    uncounted: int = 0
    crashes: int = 0
    is_due: bool = False
    is_overdue: bool = False
    fences: set[str] = field(default_factory=set)

    @property
    def is_live(self) -> bool:
        return self.state in ("waiting", "delayed", "held")

    @property
    def lane(self) -> str:
        return "suspect" if self.crashes else self.request.priority

    def is_held_by(self, worker: str, claimed: Claimed) -> bool:
        holder = (self.state, self.worker, self.delivery)
        return holder == ("held", worker, claimed.delivery) and claimed.fence in self.fences


@dataclass
class Worker:
    """What the model knows about one worker, and what that worker remembers."""

    has_lease: bool = True  # an ended lease is still one, until somebody reaps
    is_ended: bool = False
    remembers: list[Claimed] = field(default_factory=list)
    tokens: dict[str, bytes] = field(default_factory=dict)
    suspect_token: str = ""  # of the last element that it got alone
    old_tokens: list[tuple[str, bytes]] = field(default_factory=list)
    abort: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """One operation of the machine: when, and with what arguments."""

    function: Callable[..., None]
    when: Callable[["QueueMachine"], object]
    arguments: dict[str, st.SearchStrategy[Any]]

    def __repr__(self) -> str:
        return self.function.__name__


STEPS: list[Step] = []
"""Hypothesis would switch off half of the rules in each history ("swarm testing"), which here leaves
histories that hardly ever claim. So there is one rule, which draws among these."""


def step(
    *, weight: int = 1, when: Callable[["QueueMachine"], object] = lambda _: True, **arguments: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def note(function: Callable[..., None]) -> Callable[..., None]:
        STEPS.extend([Step(function, when, arguments)] * weight)
        return function

    return note


any_step = st.deferred(
    lambda: st.sampled_from(STEPS).flatmap(
        lambda chosen: st.tuples(st.just(chosen), st.fixed_dictionaries(chosen.arguments))
    )
)


class QueueMachine(RuleBasedStateMachine):
    """Every operation in any order, with every answer checked against the model."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.redis = self.runner.run(self._connect())
        self.queue = Queue(self.redis, f"fuzz-{uuid4().hex[:12]}", Limits(lease_ms=600_000))
        self.runner.run(self._forbid_ageing())
        self.items: dict[str, Item] = {}
        self.workers: dict[str, Worker] = {}
        self.inbox: list[bytes] = []
        self.inbox_suspects: list[bytes] = []
        self.dead: dict[str, Request] = {}
        self.counts: Counter[str] = Counter()
        self.batches: Counter[str] = Counter()
        self.sealed: set[str] = set()
        self.num_resubmitted = 0
        self.num_inbox_taken = 0
        self.num_ids = 0
        self.was_fcfs = False
        self.order = "fair"
        self.paused: set[str] = set()

    async def _connect(self) -> Any:
        return connect(self.url)

    async def _forbid_ageing(self) -> None:
        """Lanes are strict: a history must not depend on how long it takes."""
        await self.redis.hset(self.queue.keys.scheduling, "ageing_ms", 0)

    # -- steps ------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def call(
        self, repeat: str, operation: Callable[[], Coroutine[Any, Any, Any]], again: Any = None
    ) -> Any:
        """Run an operation once, twice, or once with its reply lost.

        `again` maps the first answer to what a repeat must answer. After a lost reply the caller
        sees that of the repeat, while the model goes by the first.
        """
        answer = self.run(operation())
        if repeat != "once":
            second = self.run(operation())
            expected = again(answer) if callable(again) else again
            assert second == expected, (second, expected)
        return answer

    def new_request(self, **fields: Any) -> Request:
        self.num_ids += 1
        estimates = {"prompt_tokens": self.num_ids % 7, "max_tokens": self.num_ids * 37 % 101}
        return a_request(f"id-{self.num_ids}", **(estimates | fields))

    def live(self, *states: str) -> list[str]:
        return [name for name, item in self.items.items() if item.state in states]

    def tokens(self, *states: str) -> int:
        requests = [self.items[name].request for name in self.live(*states)]
        return sum(max(1, request.prompt_tokens + request.max_tokens) for request in requests)

    def one_of(self, choice: int, names: Iterable[str]) -> str:
        names = list(names)
        return names[choice % len(names)]

    def accept(self, request: Request) -> None:
        state = "delayed" if request.delay_s else "waiting"
        self.items[request.id] = Item(request, state)
        self.counts["submitted"] += 1
        self.batches[request.batch] += bool(request.batch)

    def finish(self, name: str, status: str) -> None:
        item = self.items[name]
        item.state, item.worker = status, ""
        self.counts[status] += 1

    def bury(self, name: str) -> None:
        self.finish(name, "failed")
        self.dead[name] = self.items[name].request
        self.counts["dead_lettered"] += 1

    def end_elsewhere(self, name: str, status: str) -> None:
        if self.items[name].state == "held":
            self.workers[self.items[name].worker].abort.append(name)
        self.finish(name, status)

    def give_up(self, name: str) -> int:
        """What a dead worker or engine held becomes suspect; a lone suspect is the culprit."""
        held = [
            key for key, item in self.items.items() if (item.state, item.worker) == ("held", name)
        ]
        suspects = [key for key in held if self.items[key].crashes]
        for key in held:
            item = self.items[key]
            item.crashes += 1
            if [key] == suspects:
                self.bury(key)
            else:
                item.state, item.worker, item.uncounted = "waiting", "", item.uncounted + 1
        return len(held)

    @rule(data=st.data())
    def take_a_step(self, data: st.DataObject) -> None:
        """Take the first of some steps that is possible now.

        What is drawn must not depend on the queue: which ids a claim takes may be a matter of a millisecond
        (of arrival, or of a group of prefixes), and Hypothesis, which repeats what it drew, would meet other choices.
        """
        for chosen, arguments in data.draw(st.tuples(*[any_step] * CANDIDATES), "steps"):
            if chosen.when(self):
                chosen.function(self, **arguments)
                return

    # -- producers --------------------------------------------------------------------------------

    @step(
        weight=3,
        number=st.integers(1, 8),
        tenant=st.sampled_from("abc"),
        priority=st.sampled_from(["high", "normal", "low"]),
        kind=st.sampled_from(["plain", "plain", "plain", "delayed", "deadline", "batch"]),
        max_attempts=st.integers(1, 3),
        prefix=st.sampled_from(["", "p1", "p2"]),
        max_tokens=st.sampled_from([0, 10, 1000]),
        fact=st.sampled_from(["", "", "", "trace", STREAM]),
        repeat=repeats,
    )
    def submit(
        self, *, number: int, tenant: str, priority: str, kind: str, max_attempts: int,
        prefix: str, max_tokens: int, fact: str, repeat: str,
    ) -> None:  # fmt: skip
        batch = f"b{len(self.sealed)}" if kind == "batch" else ""
        fields = {
            "tenant": tenant, "priority": priority, "max_attempts": max_attempts, "batch": batch,
            "delay_s": HOUR_S if kind == "delayed" else 0,
            "deadline_s": HOUR_S if kind == "deadline" else 0,
            "reply": "client", "prefix": prefix, "max_tokens": max_tokens, "facts": {fact: "1"} if fact else {},
        }  # fmt: skip
        requests = [self.new_request(**fields) for _ in range(number)]
        codes = self.call(repeat, lambda: self.queue.submit(requests), ["queued"] * number)
        assert codes == ["accepted"] * number
        for request in requests:
            self.accept(request)

    @step(tenant=st.sampled_from("abc"))
    def submit_what_is_overdue_at_once(self, tenant: str) -> None:
        request = self.new_request(tenant=tenant, deadline_s=0.001)
        assert self.run(self.queue.submit([request])) == ["accepted"]
        self.run(self._until_overdue(request.id))
        self.accept(request)
        self.items[request.id].is_overdue = True

    async def _until_overdue(self, name: str) -> None:
        deadline_ms = await self.redis.zscore(self.queue.keys.deadlines, name)
        while (await self.queue.stats()).now_ms < (deadline_ms or 0):
            pass

    @step(when=lambda self: self.items, choice=pick, has_other_body=st.booleans())
    def submit_a_known_id(self, choice: int, has_other_body: bool) -> None:
        name = self.one_of(choice, self.items)
        item = self.items[name]
        body = BODY + b" " if has_other_body else BODY
        request = a_request(name, body=body, tenant="z", max_attempts=3)
        (code,) = self.run(self.queue.submit([request]))
        if item.state == "forgotten":
            assert code == "accepted"
            self.accept(request)
            self.num_resubmitted += 1
        elif item.request.body != body:
            assert code == "conflict"
        else:
            assert code == ("queued" if item.is_live else "done")

    @step(
        when=lambda self: self.items,
        choices=st.lists(pick, min_size=1, max_size=4, unique=True),
        repeat=repeats,
    )
    def cancel(self, choices: list[int], repeat: str) -> None:
        names = list(dict.fromkeys(self.one_of(choice, self.items) for choice in choices))
        states = [self.items[name].state for name in names]
        expected = [self._cancel_code(state) for state in states]
        again = ["unknown" if state == "forgotten" else "done" for state in states]
        assert self.call(repeat, lambda: self.queue.cancel(names), again) == expected
        for name in names:
            if self.items[name].is_live:
                self.end_elsewhere(name, "cancelled")

    @staticmethod
    def _cancel_code(state: str) -> str:
        codes = {
            "waiting": "queued",
            "delayed": "queued",
            "held": "running",
            "forgotten": "unknown",
        }
        return codes.get(state, "done")

    @step(when=lambda self: self.live(*TERMINAL), choice=pick)
    def forget_a_result(self, choice: int) -> None:
        """A result's TTL ends."""
        name = self.one_of(choice, self.live(*TERMINAL))
        if not self.items[name].request.batch:
            self.run(self.redis.delete(self.queue.keys.result(name)))
            self.items[name].state = "forgotten"

    @step(
        when=lambda self: (
            self.num_resubmitted < 2
            and any(not self.items[n].request.batch for n in self.live("waiting"))
        ),
        choice=pick,
        delay_s=st.sampled_from([0, HOUR_S]),
    )
    def submit_again_what_left_an_old_entry(self, choice: int, delay_s: int) -> None:
        """Cancelled, its result's TTL ended, submitted again: its first entry is still in a lane."""
        names = [n for n in self.live("waiting") if not self.items[n].request.batch]
        name = self.one_of(choice, names)
        assert self.run(self.queue.cancel([name])) == ["queued"]
        self.finish(name, "cancelled")
        self.run(self.redis.delete(self.queue.keys.result(name)))
        request = a_request(name, tenant="z", delay_s=delay_s)
        assert self.run(self.queue.submit([request])) == ["accepted"]
        self.accept(request)
        self.num_resubmitted += 1

    @step(when=lambda self: self.batches[f"b{len(self.sealed)}"], repeat=repeats)
    def seal(self, repeat: str) -> None:
        batch = f"b{len(self.sealed)}"
        done = sum(i.request.batch == batch and not i.is_live for i in self.items.values())
        total = self.batches[batch]
        assert self.call(repeat, lambda: self.queue.seal(batch, total), done) == done
        self.sealed.add(batch)

    @step(is_queue=st.booleans(), repeat=repeats)
    def pause(self, is_queue: bool, repeat: str) -> None:
        batch = f"b{len(self.sealed)}"
        scope = WHOLE_QUEUE if is_queue else batch_scope(batch)
        is_new = not {WHOLE_QUEUE if is_queue else batch} & self.paused
        answer = self.call(repeat, lambda: self.queue.pauses.pause(scope, "ann", "why"), False)
        assert answer == is_new
        self.paused.add(WHOLE_QUEUE if is_queue else batch)

    @step(weight=2, when=lambda self: self.paused, choice=pick, repeat=repeats)
    def resume(self, choice: int, repeat: str) -> None:
        name = self.one_of(choice, sorted(self.paused))
        scope = WHOLE_QUEUE if name == WHOLE_QUEUE else batch_scope(name)
        is_over = name in self.sealed and not any(
            item.is_live and item.request.batch == name for item in self.items.values()
        )  # the pause of a batch goes with the batch
        answer = self.call(repeat, lambda: self.queue.pauses.resume(scope), False)
        assert answer != is_over
        self.paused.remove(name)

    @step(when=lambda self: self.dead, choice=pick, repeat=repeats)
    def requeue(self, choice: int, repeat: str) -> None:
        name = self.one_of(choice, self.dead)
        old = self.dead.pop(name)
        request = self.new_request(tenant=old.tenant, priority=old.priority, body=old.body,
                                   max_attempts=old.max_attempts, prompt_tokens=old.prompt_tokens,
                                   max_tokens=old.max_tokens, facts=old.facts)  # fmt: skip
        code = self.call(
            repeat, lambda: self.queue.dead_letters.requeue(name, request.id), "queued"
        )
        assert code == "accepted"
        self.accept(request)

    # -- time -------------------------------------------------------------------------------------

    @step(when=lambda self: self.live("delayed"), choice=pick)
    def a_delay_passes(self, choice: int) -> None:
        name = self.one_of(choice, self.live("delayed"))
        self.run(make_due(self.queue, name))
        self.items[name].is_due = True

    @step(
        when=lambda self: any(i.is_live and i.request.deadline_s for i in self.items.values()),
        choice=pick,
    )
    def a_deadline_passes(self, choice: int) -> None:
        names = [n for n, i in self.items.items() if i.is_live and i.request.deadline_s]
        name = self.one_of(choice, names)
        self.run(self.redis.zadd(self.queue.keys.deadlines, {name: 1}))
        assert self.run(self.queue.expire()) == 1 + sum(
            self.items[n].is_overdue for n in names if n != name
        )
        for other in [name, *(n for n in names if self.items[n].is_overdue and n != name)]:
            self.end_elsewhere(other, "expired")
        assert self.run(self.queue.expire()) == 0

    # -- workers ----------------------------------------------------------------------------------

    def leased(self) -> list[str]:
        return [name for name, worker in self.workers.items() if worker.has_lease]

    @step(
        weight=2,
        when=lambda self: len(self.leased()) < MAX_WORKERS,
        scheduling=st.sampled_from([None, *get_args(Scheduling)]),
    )
    def register(self, scheduling: Scheduling | None) -> None:
        """A worker may bring another policy, whatever waits."""
        name = f"w{len(self.workers)}"
        policy = SchedulingPolicy(scheduling, ageing_s=0) if scheduling else None
        self.run(self.queue.register(name, {"model": "m"}, policy))
        self.was_fcfs |= scheduling == "fcfs"
        self.order = scheduling or self.order
        self.workers[name] = Worker()

    @step(
        weight=5,
        when=lambda self: self.workers,
        choice=pick, number=st.integers(1, 12), max_suspects=st.integers(0, 3),
        has_suspects=st.booleans(), understands=st.booleans(), repeat=repeats,
        lanes=st.sampled_from([ANY_LANE, ANY_LANE, LaneRoom(normal=0, low=0), LaneRoom(2, 1, 3)]),
    )  # fmt: skip
    def claim(
        self, *, choice: int, number: int, max_suspects: int, has_suspects: bool, understands: bool,
        lanes: LaneRoom, repeat: str,
    ) -> None:  # fmt: skip
        name = self.one_of(choice, self.workers)
        nonce = uuid4().hex

        async def operation() -> Claim:
            return await self.queue.claim(
                name, nonce, number, ClaimTerms(
                    suspects=SuspectRoom(max_suspects, has_suspects), lanes=lanes,
                    understands=["stream"] if understands else [],
                ),
            )  # fmt: skip

        if not self.workers[name].has_lease:
            with pytest.raises(LeaseLost):
                self.run(operation())
            return
        answer = self.run(operation())
        if repeat != "once" and answer.claimed:
            assert list(self.run(operation()).claimed) == list(answer.claimed)
        if WHOLE_QUEUE in self.paused:
            assert not answer.claimed
            assert dict(answer.inbox) == self.workers[name].tokens
            return
        if self._take_inbox(self.workers[name], answer, has_suspects):
            max_suspects = 0
        self._promote_due()
        self._check_permits(answer.claimed, lanes, understands)
        self._check_claim(answer.claimed, number, max_suspects, has_suspects)
        # A claim unparks no more than it may take. With a limit on lanes it may take less of that, and leave the rest parked.
        is_complete = lanes == ANY_LANE or not self.run(self._has_parked())
        if (
            len(answer.claimed) < number
            and is_complete
            and len(self.live("waiting")) < MAX_WAITING_EXAMINED
        ):
            self._check_nothing_is_left_out(answer.claimed, lanes, understands)
            self._check_suspects_left(answer.claimed, max_suspects, has_suspects, understands)
        for item in answer.claimed:
            self.items[item.id].state, self.items[item.id].worker = "held", name
            self.items[item.id].delivery = item.delivery
            self.items[item.id].fences.add(item.fence)
        self.workers[name].remembers += answer.claimed

    def _take_inbox(self, worker: Worker, answer: Claim, has_suspects: bool) -> bool:
        """Return whether the worker has an element beside which it may take no suspect."""
        may_take = not worker.tokens
        takes_suspect = may_take and not has_suspects and bool(self.inbox_suspects)
        source, most = (self.inbox_suspects, 1) if takes_suspect else (self.inbox, MAX_INBOX)
        for element in source[: most if may_take else 0]:
            self.num_inbox_taken += 1
            worker.tokens[str(self.num_inbox_taken)] = element
            source.remove(element)
        if takes_suspect:
            worker.suspect_token = str(self.num_inbox_taken)
        assert dict(answer.inbox) == worker.tokens
        return takes_suspect or not may_take

    def _check_claim(
        self, claimed: Iterable[Claimed], number: int, max_suspects: int, has_suspects: bool
    ) -> None:
        claimed = list(claimed)
        lanes = [self._check_claimed(item) for item in claimed]
        assert len({item.id for item in claimed}) == len(claimed) <= number
        assert lanes == sorted(lanes) or self.was_fcfs
        self._settle_overdue()
        suspects = [item for item in claimed if item.crashes]
        assert len(suspects) <= max_suspects
        is_alone = any(item.crashes > 1 for item in suspects)
        assert not is_alone or (len(suspects) == 1 and not has_suspects)

    def _promote_due(self) -> None:
        for item in self.items.values():
            if item.state == "delayed" and item.is_due:
                item.state, item.is_due = "waiting", False

    def _may_have(self, request: Request, understands: bool) -> bool:
        return request.batch not in self.paused and (understands or STREAM not in request.facts)

    def _lane_of(self, request: Request) -> str:
        return "normal" if self.order == "fcfs" else request.priority

    def _check_permits(
        self, claimed: Sequence[Claimed], lanes: LaneRoom, understands: bool
    ) -> None:
        """No claim takes what is paused, what its worker does not understand, or too much of a lane."""
        requests = [self.items[item.id].request for item in claimed]
        assert all(self._may_have(request, understands) for request in requests)
        taken = Counter(self._lane_of(self.items[i.id].request) for i in claimed if not i.crashes)
        assert all(
            taken[lane] <= most for lane, most in lanes._asdict().items() if most is not None
        )

    async def _has_parked(self) -> bool:
        return bool(await self.queue.redis.exists(self.queue.keys.parked))

    def _left(self, claimed: Sequence[Claimed], understands: bool) -> list[Item]:
        """Return what waits after a claim and might have been taken."""
        taken = {item.id for item in claimed}
        waiting = [self.items[name] for name in self.live("waiting") if name not in taken]
        return [item for item in waiting if self._may_have(item.request, understands)]

    def _check_nothing_is_left_out(
        self, claimed: Sequence[Claimed], lanes: LaneRoom, understands: bool
    ) -> None:
        taken = Counter(self._lane_of(self.items[i.id].request) for i in claimed if not i.crashes)
        full = {
            lane
            for lane, most in lanes._asdict().items()
            if most is not None and taken[lane] == most
        }
        left = [item for item in self._left(claimed, understands) if not item.crashes]
        assert {self._lane_of(item.request) for item in left} <= full

    def _check_suspects_left(
        self, claimed: Sequence[Claimed], max_suspects: int, has_suspects: bool, understands: bool
    ) -> None:
        suspects = [item for item in claimed if item.crashes]
        left = [item for item in self._left(claimed, understands) if item.crashes]
        is_alone = any(item.crashes > 1 for item in suspects)
        is_blocked = any(item.crashes > 1 for item in left) and (has_suspects or suspects)
        assert not left or is_alone or is_blocked or len(suspects) == max_suspects

    def _check_claimed(self, claimed: Claimed) -> int:
        item = self.items[claimed.id]
        assert item.state == "waiting"
        assert not item.is_overdue
        assert claimed.delivery == item.delivery + 1
        assert claimed.attempt == claimed.delivery - item.uncounted
        assert claimed.crashes == item.crashes
        assert claimed.record.body == item.request.body
        return LANES.index(item.lane)

    def _settle_overdue(self) -> None:
        """A claim ends what is overdue if it comes across it; what stays is checked like all that stays."""
        overdue = [n for n in self.live("waiting") if self.items[n].is_overdue]
        states = self.run(self.queue.status(overdue)) if overdue else []
        for name, (state, _) in zip(overdue, states, strict=True):
            if state == "done":
                self.finish(name, "expired")

    def memory(self, choice: int) -> tuple[str, list[Claimed]]:
        names = [name for name, worker in self.workers.items() if worker.remembers]
        name = self.one_of(choice, names)
        return name, self.workers[name].remembers

    @step(
        weight=4,
        when=lambda self: any(worker.remembers for worker in self.workers.values()),
        choice=pick, start=pick, number=st.integers(1, 6),
        status=st.sampled_from(["succeeded", "succeeded", "failed"]), repeat=repeats,
    )  # fmt: skip
    def ack(self, choice: int, start: int, number: int, status: str, repeat: str) -> None:
        name, remembers = self.memory(choice)
        start %= len(remembers)
        items = remembers[start : start + number]
        settlements = [settlement(item, status) for item in items]
        expected = [self._ack(name, item, status) for item in items]
        codes = self.call(repeat, lambda: self.queue.ack(name, settlements), [0] * len(items))
        assert codes == expected

    def _ack(self, name: str, claimed: Claimed, status: str) -> int:
        item = self.items[claimed.id]
        if item.is_held_by(name, claimed):
            self.finish(claimed.id, status)
            return 1
        if status == "failed" or not item.is_live or claimed.fence not in item.fences:
            return 0
        if item.state == "held" and item.worker != name:
            self.workers[item.worker].abort.append(claimed.id)
        self.finish(claimed.id, status)
        return 2

    @step(
        weight=2,
        when=lambda self: any(worker.remembers for worker in self.workers.values()),
        choice=pick,
        other=pick,
        delay_s=st.sampled_from([0, HOUR_S]),
        repeat=repeats,
    )
    def nack(self, choice: int, other: int, delay_s: int, repeat: str) -> None:
        name, remembers = self.memory(choice)
        claimed = remembers[other % len(remembers)]
        expected = self._nack(name, claimed, delay_s)
        operation = lambda: self.queue.nack(name, claimed, delay_s * 1000, ERROR)  # noqa: E731
        assert self.call(repeat, operation, "stale") == expected

    def _nack(self, name: str, claimed: Claimed, delay_s: int) -> str:
        item = self.items[claimed.id]
        if not item.is_held_by(name, claimed):
            return "stale"
        if item.delivery - item.uncounted >= item.request.max_attempts:
            self.bury(claimed.id)
            return "dead_lettered"
        item.state, item.worker = ("delayed" if delay_s else "waiting"), ""
        return "retried"

    @step(
        when=lambda self: any(worker.remembers for worker in self.workers.values()),
        choice=pick,
        start=pick,
        number=st.integers(1, 8),
        delay_s=st.sampled_from([0, HOUR_S]),
        repeat=repeats,
    )
    def release(self, choice: int, start: int, number: int, delay_s: int, repeat: str) -> None:
        name, remembers = self.memory(choice)
        start %= len(remembers)
        claimed = remembers[start : start + number]
        held = {c.id for c in claimed if self.items[c.id].is_held_by(name, c)}
        operation = lambda: self.queue.release(name, claimed, delay_s * 1000)  # noqa: E731
        assert self.call(repeat, operation, 0) == len(held)
        for key in held:
            item = self.items[key]
            item.state, item.worker = ("delayed" if delay_s else "waiting"), ""
            item.uncounted += 1

    @step(when=lambda self: self.workers, choice=pick, repeat=repeats)
    def crash(self, choice: int, repeat: str) -> None:
        name = self.one_of(choice, self.workers)
        moved, _ = self.call(repeat, lambda: self.queue.crash(name, {"exit_code": -9}), (0, []))
        assert moved == self.give_up(name)

    @step(when=lambda self: self.workers, choice=pick)
    def beat(self, choice: int) -> None:
        name = self.one_of(choice, self.workers)
        worker = self.workers[name]
        if not worker.has_lease:
            with pytest.raises(LeaseLost):
                self.run(self.queue.beat(name))
            return
        answer = self.run(self.queue.beat(name))
        num_held = sum((i.state, i.worker) == ("held", name) for i in self.items.values())
        assert answer.num_in_flight == num_held
        assert sorted(answer.abort) == sorted(worker.abort)
        worker.abort, worker.is_ended = [], False

    @step(when=lambda self: self.leased(), choice=pick)
    def freeze(self, choice: int) -> None:
        """A worker freezes for longer than its lease; it remembers what it held."""
        name = self.one_of(choice, self.leased())
        self.run(end_lease(self.queue, name))
        self.workers[name].is_ended = True

    @step()
    def reap(self) -> None:
        ended = [n for n in self.leased() if self.workers[n].is_ended]
        expected = {name: self.give_up(name) for name in ended}
        assert self.run(self.queue.reap()) == expected
        assert self.run(self.queue.reap()) == {}
        for name in ended:
            worker = self.workers[name]
            if list(worker.tokens) == [worker.suspect_token]:
                self.counts["dead_lettered"] += 1
            else:
                self.inbox_suspects[:0] = worker.tokens.values()
            worker.old_tokens += worker.tokens.items()
            worker.tokens, worker.abort, worker.has_lease = {}, [], False

    @step(when=lambda self: self.leased(), choice=pick, repeat=repeats)
    def deregister(self, choice: int, repeat: str) -> None:
        name = self.one_of(choice, self.leased())
        is_holding = any((i.state, i.worker) == ("held", name) for i in self.items.values())
        assert self.call(repeat, lambda: self.queue.deregister(name), not is_holding) is (
            not is_holding
        )
        if not is_holding:
            worker = self.workers[name]
            is_suspect = worker.suspect_token in worker.tokens
            (self.inbox_suspects if is_suspect else self.inbox)[:0] = worker.tokens.values()
            worker.old_tokens += worker.tokens.items()
            worker.tokens, worker.abort, worker.has_lease = {}, [], False

    # -- the inbox --------------------------------------------------------------------------------

    @step(elements=st.lists(st.sampled_from([BODY, b"{not json", b"1|\x00\xff\n\n", b""]), min_size=1,
                            max_size=3))  # fmt: skip
    def push_into_inbox(self, elements: list[bytes]) -> None:
        self.run(self.redis.rpush(self.queue.keys.inbox, *elements))
        self.inbox += elements

    @step(
        when=lambda self: any(w.tokens or w.old_tokens for w in self.workers.values()),
        choice=pick,
        other=pick,
        repeat=repeats,
    )
    def admit(self, choice: int, other: int, repeat: str) -> None:
        names = [name for name, w in self.workers.items() if w.tokens or w.old_tokens]
        name = self.one_of(choice, names)
        worker = self.workers[name]
        tokens = [*worker.tokens.items(), *worker.old_tokens]
        token, element = tokens[other % len(tokens)]
        request = a_request(f"inbox-{token}", body=element)
        dead_id = f"inbox-{token}"
        if element == BODY:
            code = self.call(repeat, lambda: self.queue.admit(name, token, request), "gone")
        else:
            code = self.call(
                repeat, lambda: self.queue.admit_garbage(name, token, dead_id, {"at": 1}), "gone"
            )
        if token not in worker.tokens:
            assert code == "gone"
            return
        worker.old_tokens.append((token, worker.tokens.pop(token)))
        assert code == ("accepted" if element == BODY else "dead_lettered")
        if element == BODY:
            self.accept(request)
        else:
            self.counts["dead_lettered"] += 1

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def the_audit_is_clean(self) -> None:
        findings = self.run(audit(self.queue))
        assert not [f for f in findings if not f.is_harmless], findings
        assert self.num_resubmitted or not findings

    @invariant()
    def every_id_is_where_the_model_says(self) -> None:
        names = {
            "waiting": "queued",
            "delayed": "delayed",
            "held": "running",
            "forgotten": "unknown",
        }
        expected = [(names.get(i.state, "done"), i.worker) for i in self.items.values()]
        assert self.run(self.queue.status(list(self.items))) == expected

    @invariant()
    def every_counter_is_what_the_model_says(self) -> None:
        stats = self.run(self.queue.stats())
        expected = self.counts | Counter(
            queued=len(self.live("waiting", "delayed")),
            in_flight=len(self.live("held")),
            queued_tokens=self.tokens("waiting", "delayed"),
            in_flight_tokens=self.tokens("held"),
        )
        counters = {name: stats.counters.get(name, 0) for name in expected}
        assert counters == dict(expected)
        assert stats.num_inbox == len(self.inbox) + len(self.inbox_suspects)
        assert set(stats.workers) == set(self.leased())

    # -- the end ----------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.run(self._drain())
            self.run(self._check_the_end())
        finally:
            self.run(self.redis.aclose())
            self.runner.close()

    async def _drain(self) -> None:
        for name in self.leased():
            await end_lease(self.queue, name)
        while await self.queue.reap():
            pass
        for name in self.live("delayed"):
            await make_due(self.queue, name)
        if open_batch := self.batches[f"b{len(self.sealed)}"]:
            await self.queue.seal(f"b{len(self.sealed)}", open_batch)
        await self.queue.register("drain", {})
        for name in self.paused:
            await self.queue.pauses.resume(name if name == WHOLE_QUEUE else batch_scope(name))
        while True:
            answer = await self.queue.claim(
                "drain",
                uuid4().hex,
                128,
                ClaimTerms(suspects=SuspectRoom(128), understands=["stream"]),
            )
            for token, element in answer.inbox:
                await self.queue.admit_garbage(
                    "drain", token, f"inbox-{token}", {"bytes": len(element)}
                )
            if not answer.claimed and not answer.inbox:
                break
            if answer.claimed:
                await self.queue.ack("drain", [settlement(item) for item in answer.claimed])
        assert await self.queue.deregister("drain")

    async def _check_the_end(self) -> None:
        findings = await audit(self.queue)
        assert not [f for f in findings if not f.is_harmless], findings
        stats = Counter((await self.queue.stats()).counters)
        accepted = self.counts["submitted"]
        assert (stats["queued"], stats["in_flight"], stats["bytes"]) == (0, 0, 0)
        assert stats["submitted"] == accepted == sum(stats[status] for status in TERMINAL)
        states = await self.queue.status(list(self.items))
        forgotten = [item.state == "forgotten" for item in self.items.values()]
        assert [state == "unknown" for state, _ in states] == forgotten
        await self._check_what_is_left()
        done = await self.redis.lrange(self.queue.keys.batches_done, 0, -1)
        assert sorted(done) == sorted(name.encode() for name, n in self.batches.items() if n)

    async def _check_what_is_left(self) -> None:
        """Nothing but records with a TTL, dead letters, and counters."""
        prefix = self.queue.keys.prefix
        keys = [key.decode() async for key in self.redis.scan_iter(match=f"{prefix}*", count=1000)]
        kinds = {key.removeprefix(prefix).partition(":")[0] for key in keys}
        assert kinds <= {
            "result", "finished", "batch", "batches_done", "dead_letters", "dead_letter_info",
            "stats", "format", "pace", "usage", "times", "virtual_time", "debt", "tenant_output_shares", "scheduling", "prefix_groups",
            "doorbell",
        }  # fmt: skip


@pytest.mark.timeout(0 if EXAMPLES > 40 else 600)
def test_random_histories_keep_every_invariant(any_empty_redis_url: str) -> None:
    machine = type("Machine", (QueueMachine,), {"url": any_empty_redis_url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=MAX_STEPS,
            deadline=None,
            print_blob=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

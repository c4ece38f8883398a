"""The suite notices an `ack` with too weak a fence: the mutant ends a request that another claim holds.

In random schedules a late failure is rare, and mostly the request fails again. These histories always have one, and
the request succeeds afterwards.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import orjson
import pytest
from faults.cell import BINARIES, Cell, open_cell
from faults.outcome import audited
from faults.processes import Prompt
from queues import ERROR, claim, die, make_due, open_worker

from gristmill.shared import scripts
from gristmill.shared.operations import Settlement, Use
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.shared.results import response_outcome
from gristmill.shared.scripts import script_source

PROMPTS = {"r0": Prompt("plain 0", 2)}
ANSWER = orjson.dumps({"choices": [{"text": "plain 0"}]})

HOLDER_ONLY = (
    "is_held = is_current(deliveries[n], fence, header)",
    "is_held = deliveries[n] and header",
)
"""Mutation: `ack` checks that the worker holds the id, and not the number of the delivery."""

ANY_FAILURE = ('return status == "succeeded" and string.match', "return string.match")
"""Mutation: `ack` takes a failure from a worker that does not hold the request."""


async def settle(queue: Queue, worker: str, item: Claimed, *, is_success: bool) -> None:
    outcome = response_outcome(item.attempt, worker, 200 if is_success else 400, ANSWER)
    settlement = Settlement(
        item.id,
        item.delivery,
        "succeeded" if is_success else "failed",
        outcome,
        usage=Use("default"),
        fence=item.fence,
    )
    await queue.ack(worker, [settlement])


async def fail_under_an_earlier_claim(queue: Queue) -> None:
    """The failure of a claim arrives when its worker has claimed the request again."""
    worker = await open_worker(queue)
    (first,) = await claim(queue, worker)
    await queue.nack(worker, first, 60_000, ERROR)
    await make_due(queue, first.id)
    (second,) = await claim(queue, worker)
    await settle(queue, worker, first, is_success=False)
    await settle(queue, worker, second, is_success=True)


async def fail_without_the_request(queue: Queue) -> None:
    """The failure of a claim arrives when its worker is dead and another one holds the request."""
    worker, other = await open_worker(queue), await open_worker(queue)
    (first,) = await claim(queue, worker)
    await die(queue, worker)
    (second,) = await claim(queue, other)
    await settle(queue, worker, first, is_success=False)
    await settle(queue, other, second, is_success=True)


History = Callable[[Queue], Awaitable[None]]


async def run(cell: Cell, history: History) -> None:
    """Let a history happen to the request of a producer, and check its end."""
    producer = await cell.add_producer(PROMPTS)
    await cell.until("submitted", 1)
    await history(cell.queue)
    await producer.living
    for worker in (await cell.queue.stats()).workers:
        await cell.queue.deregister(worker)
    await audited(cell, PROMPTS)


@pytest.fixture
async def cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Cell]:
    """A cell whose queue has a mutated `ack`, if the test names a mutation."""
    if mutation := getattr(request, "param", None):
        before, after = mutation
        assert before in script_source("ack")
        monkeypatch.setattr(
            scripts, "script_source", lambda verb: script_source(verb).replace(before, after)
        )
    async with open_cell(BINARIES[0], tmp_path) as cell:
        yield cell


@pytest.mark.parametrize("history", [fail_under_an_earlier_claim, fail_without_the_request])
async def test_a_late_failure_changes_nothing(cell: Cell, history: History) -> None:
    await run(cell, history)


@pytest.mark.parametrize(
    ("cell", "history"),
    [(HOLDER_ONLY, fail_under_an_earlier_claim), (ANY_FAILURE, fail_without_the_request)],
    indirect=["cell"],
)
async def test_a_mutant_that_takes_a_late_failure_is_caught(cell: Cell, history: History) -> None:
    with pytest.raises(AssertionError, match="status='failed'"):
        await run(cell, history)

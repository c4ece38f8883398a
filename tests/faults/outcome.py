"""What must hold when a cell has come to rest, and what is counted of it."""

import asyncio
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import cycle, islice
from typing import Any

from faults.cell import Cell
from faults.processes import (
    ANSWERS_TOO_MUCH,
    FAILS_ONCE,
    IS_WRONG,
    KILLS_ENGINE,
    KILLS_WORKER,
    Journal,
    Prompt,
)
from queues import claim, kinds_of_keys, open_worker

from gristmill.shared.audit import audit
from gristmill.shared.results import Result
from gristmill.shared.usage_ledger import Ledger, Usage

CULPRITS = {KILLS_ENGINE, KILLS_WORKER}

LASTING = {
    "result",
    "finished",
    "stats",
    "format",
    "pace",
    "usage",
    "times",
    "virtual_time",
    "scheduling",
    "tenant_output_shares",
    "debt",
    "dead_letters",
    "dead_letter_info",
    "doorbell",
    "file",
    "files_expiring",
    "storage",
}
"""Kinds of keys that may be there when all requests have ended. Redis may have cut off an upload. A steward deletes what
it left after a day; see `UPLOAD_TRAIL`."""

UPLOAD_TRAIL = (("storage", "file"), ("file", "files_expiring"))
"""Kinds of keys that an upload leaves, and the kind by which a steward finds each of them."""

DRAIN_CODES = {0, 1}
"""1: the engine had died three times in vain, everything was handed back."""


@dataclass(frozen=True)
class Outcome:
    """What became of the requests of a cell.

    Attributes:
        num_requests: Accepted.
        num_lost: Accepted, and without a terminal record.
        num_doubled: Seen twice by one client, or counted twice.
        num_innocents: No culprits, and dead-lettered as `engine_killed`: lone suspects of two deaths.
    """

    num_requests: int
    num_lost: int
    num_doubled: int
    num_innocents: int


async def come_to_rest(cell: Cell, *, may_be_killed: bool = False) -> None:
    """Drain every worker, then reap what the dead have left.

    Args:
        cell: Its producer is done.
        may_be_killed: Whether a trap may still kill a worker that drains.
    """
    codes = await asyncio.gather(*(pod.stop() for pod in cell.workers))
    assert set(codes) <= DRAIN_CODES | ({-signal.SIGKILL} if may_be_killed else set()), codes
    all_codes = {code for pod in cell.workers for code in pod.exit_codes}
    if all_codes == {0}:  # whoever drains closes its lease
        assert (await cell.queue.stats()).workers == {}
    while (await cell.queue.stats()).workers:
        await cell.queue.reap()
        await asyncio.sleep(0.02)


async def audited(
    cell: Cell,
    prompts: dict[str, Prompt],
    check: Callable[[Prompt, Result], None] | None = None,
) -> Outcome:
    """Check every promise on a cell at rest, and count.

    Args:
        cell: Its producer is done, its workers are drained.
        prompts: What was submitted.
        check: Looks at one answer; `check_answer` unless given.
    """
    check = check or check_answer
    journal = Journal.read(cell.journal)
    assert journal.accepted == prompts.keys()
    results = dict(zip(prompts, await cell.queue.results(list(prompts)), strict=True))
    num_lost = sum(result is None for result in results.values())
    num_doubled = sum(len(statuses) - 1 for statuses in journal.seen.values())
    stats = await cell.queue.stats()
    counters = stats.counters
    num_ended = sum(counters.get(status, 0) for status in ("succeeded", "failed"))
    num_doubled += max(0, num_ended - len(prompts))
    innocents = [
        request_id for request_id, result in results.items()
        if result and _code(result) == "engine_killed" and prompts[request_id].kind not in CULPRITS
    ]  # fmt: skip
    assert (num_lost, num_doubled) == (0, 0)
    assert num_ended == counters["submitted"] == len(prompts)
    for request_id, result in results.items():
        assert result is not None
        if request_id not in innocents:
            check(prompts[request_id], result)
        for (_, seen_id), statuses in journal.seen.items():
            assert seen_id != request_id or statuses == [result.status]
    assert [counters.get(name, 0) for name in ("queued", "in_flight", "bytes")] == [0, 0, 0]
    assert (stats.num_delayed, stats.num_inbox, stats.workers) == (0, 0, {})
    await cell.foreign.check()
    await check_ledger(cell, results.values())
    await claim_nothing(cell)
    kinds = await kinds_of_keys(cell.queue)
    assert kinds <= LASTING | await expiring(cell)
    assert [kind for kind, trail in UPLOAD_TRAIL if kind in kinds and trail not in kinds] == []
    assert await audit(cell.queue) == []
    return Outcome(len(prompts), num_lost, num_doubled, len(innocents))


async def check_ledger(cell: Cell, results: Iterable[Result | None]) -> None:
    """Check that the ledger has exactly the requests, the tokens and the device time of the results."""
    answered: defaultdict[tuple[date, str, str], list[Usage]] = defaultdict(list)
    for result in results:
        if result is not None and result.status_code is not None:
            day = datetime.fromtimestamp(result.finished_ms / 1000, UTC).date()
            prompt_tokens, output_tokens = result.tokens
            used = Usage(1, prompt_tokens, 0, output_tokens, result.device_ms)
            answered[day, result.tenant, result.made_by.get("model", "")].append(used)
    days = {day for day, _, _ in answered} or {await Ledger(cell.queue).today()}
    rows = await Ledger(cell.queue).rows(min(days), max(days))
    sums = {name: Usage.total(usages) for name, usages in answered.items()}
    assert {(row.day, row.tenant, row.model): row.usage for row in rows} == sums


async def claim_nothing(cell: Cell) -> None:
    """Claim as one more worker: it gets nothing, and removes the tombstones from the lanes.

    An answer that came after its worker's lease leaves the id of an ended request in a lane.
    """
    worker = await open_worker(cell.queue)
    assert await claim(cell.queue, worker) == []
    await cell.queue.deregister(worker)


async def expiring(cell: Cell) -> set[str]:
    """Return "worker" if such a key has a TTL: a worker noted its brake when its lease had just been lost."""
    queue = cell.queue
    found = [key async for key in queue.redis.scan_iter(match=queue.keys.worker("*"), count=1000)]
    assert -1 not in [await queue.redis.pttl(key) for key in found]
    return {"worker"} if found else set()


def check_answer(prompt: Prompt, result: Result) -> None:
    """Check that an answer is the one of its own prompt."""
    if prompt.kind in CULPRITS:
        assert (result.status, _code(result)) == ("failed", "engine_killed"), result
    elif prompt.kind == IS_WRONG:
        assert (result.status, result.status_code) == ("failed", 400), result
    elif prompt.kind == ANSWERS_TOO_MUCH:
        assert (result.status, result.status_code) == ("failed", 413), result
    elif prompt.kind == FAILS_ONCE and result.status == "failed":
        assert result.status_code == 500, result  # its second try was in another process
    else:
        assert result.status == "succeeded", result
        assert result.body is not None
        text = " ".join(islice(cycle(prompt.text.split()), prompt.max_tokens))
        assert result.body["choices"][0]["text"] == text


def _code(result: Result) -> Any:
    return (result.error or {}).get("code")

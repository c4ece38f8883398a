"""What the pages of `gristmill top` show: figures of the queue for all of them, and a table for each."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gristmill.producer.overview import (
    BatchView,
    DeadView,
    QueueView,
    TenantView,
    WorkerView,
    read_batches,
    read_dead,
    read_queue,
    read_tenants,
    tenant_names,
)
from gristmill.producer.overview.figures import (
    UNKNOWN,
    duration,
    memory,
    moment,
    percent,
    short_count,
)
from gristmill.producer.top.columns import Column, Table
from gristmill.shared.queue import Queue
from gristmill.shared.queue_stats import moved_in_words, num_live
from gristmill.shared.redis_full import in_words

ROWS = 50
"""Most batches, dead letters or tenants that a page shows."""


@dataclass(frozen=True, slots=True)
class PageData:
    """What one refresh of a page has read.

    Attributes:
        view: The queue and its workers.
        table: The table of the page.
    """

    view: QueueView
    table: Table


async def read_page(queue: Queue, page: str) -> PageData:
    """Read a queue and the table of one of the `PAGES`.

    Raises:
        RedisError, OSError: Redis does not answer, or refuses.
        GristmillError: Another version wrote the queue.
    """
    view = await read_queue(queue)
    return PageData(view, await PAGES[page](queue, view))


def headline(view: QueueView, finished_per_s: float | None) -> list[str]:
    """Return the figures of a queue that every page shows, as lines of at most 80 characters.

    Args:
        view: The queue.
        finished_per_s: Requests that ended per second since the last refresh; None at the first one.
    """
    backlog = view.backlog
    work = duration(view.work_s) if view.work_s is not None else "unknown"
    braked = f", {backlog.num_braked} braked" if backlog.num_braked else ""
    oldest = max(backlog.oldest_s.values(), default=None)
    lines: list[dict[str, str]] = [
        {
            "waiting": short_count(backlog.num_waiting), "delayed": short_count(backlog.num_delayed),
            "paused": short_count(backlog.num_paused), "in flight": short_count(backlog.num_in_flight),
            "dead": short_count(backlog.num_dead),
        },
        {"work": work, "longest wait": duration(oldest), "deadline slack": duration(backlog.slack_s)},
        {
            "workers": f"{backlog.num_workers}{braked}", "requests/s": short_count(finished_per_s),
            "tokens/s": f"{short_count(view.output_tokens_per_s)} out, {short_count(view.prompt_tokens_per_s)} prompt",
        },
    ]  # fmt: skip
    return [" | ".join(f"{name} {value}" for name, value in line.items()) for line in lines]


async def _queue(queue: Queue, view: QueueView) -> Table:
    stats, backlog = view.backlog.stats, view.backlog
    oldest = backlog.oldest_s
    lanes = {
        f"lane {lane}": f"{number:,} waiting" + (f", the oldest {duration(oldest[lane])}" if lane in oldest else "")
        for lane, number in stats.depth_by_lane.items()
    }  # fmt: skip
    so_far = ("submitted", "succeeded", "failed", "cancelled", "expired")
    facts = {
        **lanes,
        "inbox": f"{stats.num_inbox:,} elements",
        "order": stats.scheduling,
        "tokens": f"{short_count(backlog.queued_tokens)} waiting, {short_count(backlog.in_flight_tokens)} in flight",
        "pace": f"{short_count(backlog.tokens_per_s if backlog.is_pace_known else None)} tokens/s",
        "so far": ", ".join(f"{n:,} {name}" for name in so_far if (n := stats.counters.get(name)))
        or "nothing",
        "producers": f"{num_live(stats.producers)} submitting",
        "memory": memory(stats.used_memory, stats.max_memory),
        **{f"paused {scope}": pause.in_words() for scope, pause in sorted(stats.pauses.items())},
        **{f"set aside {why}": f"{number:,}" for why, number in sorted(stats.num_parked.items())},
    }
    if words := moved_in_words(queue.keys, stats.wrong_types):
        facts["wrong type"] = words
    columns = (Column("", 24, is_number=False), Column("", 200, is_number=False))
    return Table(columns, list(facts.items()))


async def _workers(_: Queue, view: QueueView) -> Table:
    columns = (
        Column("worker", 30, is_number=False), Column("state", 14, is_number=False), Column("held"), Column("engine"),
        Column("out/s"), Column("KV"), Column("lease"), Column("model", 30, is_number=False),
        Column("host", 20, is_number=False), Column("device", 24, is_number=False), Column("vLLM", 10, is_number=False),
    )  # fmt: skip
    return Table(columns, [_worker(each) for each in view.workers])


def _worker(each: WorkerView) -> tuple[str, ...]:
    load = each.load
    held = f"{each.num_in_flight}/{each.max_in_flight}" if each.max_in_flight else str(each.num_in_flight)  # fmt: skip
    return (
        each.name,
        each.state,
        held,
        short_count(load.num_running if load else None),
        short_count(load.output_tokens_per_s if load else None),
        percent(load.kv_cache_usage if load else None),
        duration(each.lease_ms / 1000) if each.is_live else "ended",
        ", ".join(each.served.models),
        each.host,
        f"{each.num_devices} x {each.device}" if each.device else UNKNOWN,
        each.vllm_version or UNKNOWN,
    )


async def _batches(queue: Queue, view: QueueView) -> Table:
    page = await read_batches(queue, await tenant_names(queue), limit=ROWS)
    columns = (
        Column("batch", 32, is_number=False), Column("status", 11, is_number=False), Column("done"), Column("failed"),
        Column("left"), Column("lines"), Column("lines/s"), Column("tenant", 20, is_number=False),
        Column("note", 60, is_number=False),
    )  # fmt: skip
    note = f"the newest {ROWS} batches" if page.next_after else ""
    return Table(columns, [_batch(each) for each in page.batches], note)


def _batch(each: BatchView) -> tuple[str, ...]:
    record, counts = each.record, each.record.request_counts
    note = each.problem or (f"paused {each.pause.in_words()}" if each.pause else "")
    return (
        record.id,
        "paused" if each.pause else record.status,
        percent(each.share_done if counts.total else None),
        short_count(counts.failed),
        duration(each.remaining_s),
        short_count(counts.total),
        short_count(each.lines_per_s),
        record.tenant,
        note,
    )


async def _dead(queue: Queue, view: QueueView) -> Table:
    page = await read_dead(queue, limit=ROWS)
    columns = (
        Column("id", 32, is_number=False), Column("when (UTC)", 19, is_number=False),
        Column("reason", 18, is_number=False), Column("tries"), Column("deaths"), Column("bytes", 12),
        Column("cause", 80, is_number=False),
    )  # fmt: skip
    note = f"the newest {ROWS} of {page.total:,}" if page.total > ROWS else ""
    return Table(columns, [_letter(each) for each in page.letters], note)


def _letter(each: DeadView) -> tuple[str, ...]:
    letter = each.letter
    return (
        each.id,
        moment(each.at_ms),
        letter.reason if letter else "too large to read",
        short_count(letter.attempt if letter else None),
        short_count(letter.crashes if letter else None),
        in_words(each.num_bytes),
        letter.cause if letter else "",
    )


async def _tenants(queue: Queue, view: QueueView) -> Table:
    page = await read_tenants(queue, limit=ROWS)
    columns = (
        Column("tenant", 24, is_number=False), Column("requests"), Column("bytes"), Column("batches"),
        Column("ended today"), Column("tokens in"), Column("out"), Column("device"),
    )  # fmt: skip
    note = f"the first {ROWS} tenants by name" if page.next_after else ""
    return Table(columns, [_tenant(each) for each in page.tenants], note)


def _tenant(each: TenantView) -> tuple[str, ...]:
    today = each.today
    return (
        each.name,
        short_count(each.num_requests),
        in_words(each.num_bytes),
        short_count(each.num_open_batches),
        short_count(today.requests),
        short_count(today.prompt_tokens),
        short_count(today.output_tokens),
        duration(today.device_ms / 1000),
    )


PAGES: Mapping[str, Callable[[Queue, QueueView], Awaitable[Table]]] = {
    "queue": _queue,
    "workers": _workers,
    "batches": _batches,
    "dead letters": _dead,
    "tenants": _tenants,
}
"""Name of a page -> the function that reads its table; the keys 1 to 5 choose them in this order."""

"""Describe batches in words, as the `gristmill batch` commands print them."""

from gristmill.producer.batches.child_batches import ChildBatch
from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.usage_report import cost_of
from gristmill.shared.one_line import one_line

MAX_ERROR = 100
"""Most characters of an error in a line of `batch list`."""


def _counts(record: BatchRecord) -> str:
    counts = record.request_counts
    others = [
        f"{number:,} {name}"
        for name in ("failed", "cancelled", "expired")
        if (number := getattr(counts, name))
    ]
    return f"{counts.completed:,}/{counts.total:,} completed" + "".join(f", {text}" for text in others)  # fmt: skip


def list_line(record: BatchRecord, owner: str, on_queue: str, *, is_paused: bool) -> str:
    """Return the line of `batch list` for one batch.

    Args:
        record: The batch.
        owner: Its tenant, padded to the width of the column; "" for a list without this column.
        on_queue: Option that names the queue, for the command in an error.
        is_paused: True if the batch is paused.
    """
    column = f"  {owner}" if owner else ""
    pause = "  paused" if is_paused else ""
    wait = "  waiting" if record.waiting else ""
    error = _first_error(record, on_queue)
    return f"{record.id}{column}  {record.status:<11}  {_counts(record)}{pause}{wait}{error}"


def child_line(child: ChildBatch) -> str:
    """Return the line of `batch show` for one queue of a batch of several queues."""
    state = "not begun, or purged"
    if child.state:
        state = f"{child.state.record.status}, {_counts(child.state.record)}"
    return f"queue    {child.queue}: {state}"


def _first_error(record: BatchRecord, on_queue: str) -> str:
    """Return the first words of the reason why a whole file was refused, or ""."""
    if not (record.errors and record.errors.data):
        return ""
    return f"  {one_line(record.errors.data[0].message, MAX_ERROR)}; see: gristmill batch show {record.id} {on_queue}"


def show_lines(record: BatchRecord, device_hour_price: float) -> list[str]:
    """Return the lines of `batch show`; a price of 0 shows no cost."""
    lines = [
        f"batch    {record.id}",
        f"tenant   {record.tenant}",
        f"status   {record.status}",
        f"counts   {_counts(record)}",
        f"tokens   {record.usage.input_tokens:,} in, {record.usage.output_tokens:,} out",
        f"device   {_device_time(record.device_ms, device_hour_price)}",
    ]
    lines += [f"error    {error.code}: {error.message}" for error in record.errors.data] if record.errors else []  # fmt: skip
    lines += [f"warning  {each.code}: {each.message}" for each in record.warnings.data] if record.warnings else []  # fmt: skip
    lines += [f"output   {record.output_file_id}"] if record.output_file_id else []
    lines += [f"errors   {record.error_file_id}"] if record.error_file_id else []
    return lines


def _device_time(device_ms: int, device_hour_price: float) -> str:
    cost = cost_of(device_ms, device_hour_price)
    return f"{device_ms / 1000:,.1f} s" + (f", cost {cost:,.4f}" if device_hour_price else "")

"""Report what the check of an input has found; `submission.py` calls it before anything is submitted."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gristmill.producer.batches.rows import BadLine, first_id
from gristmill.producer.batches.submit_run import InputReport
from gristmill.producer.commands.submit_runs import RunSource
from gristmill.shared.cli import say
from gristmill.shared.errors import IdConflict, InvalidRequest


@contextmanager
def conflict_in_words(run: str, noun: str) -> Iterator[None]:
    """Say which line of the input conflicts with an earlier run of this name.

    Args:
        run: Name of the run.
        noun: What the input has: lines, or rows of a table.

    Raises:
        InvalidRequest: The queue has another request under the id of a line.
    """
    try:
        yield
    except IdConflict as error:
        line = first_id(error.request_id or "").removeprefix(f"{run}-")
        raise InvalidRequest(
            f"{noun} {line} (request {error.request_id}) differs from {noun} {line} of an earlier run {run}; submit the same input with the same"
            " options as before, or name another run with --run-name"
        ) from None


def _listed(lines: Sequence[BadLine], total: int) -> str:
    """Return lines as a list, each below the one before, and how many more there are.

    A resumed run of a table knows only their number; the first process has listed them.
    """
    if not lines:
        return ""
    shown = ":" + "".join(f"\n  {line}" for line in lines)
    return shown + (f"\n  and {more:,} more" if (more := total - len(lines)) else "")


def refuse_bad_lines(report: InputReport, run: RunSource, *, source: str, is_lenient: bool) -> None:
    """Say which lines are bad or have fields without effect, and refuse a file with bad ones.

    Args:
        report: Outcome of the check.
        run: What is run.
        source: Name of the input.
        is_lenient: True to run the good lines of a file that has bad ones.

    Raises:
        InvalidRequest: There are no lines, or bad ones without `is_lenient`.
    """
    if report.num_lines == 0:
        raise InvalidRequest(run.if_empty)
    if report.num_warned and run.common_fields:
        say(f"{run.common_fields} has fields without effect: {report.warned[0].reason}")
    elif report.num_warned:
        listed = _listed(report.warned, report.num_warned)
        say(
            f"{report.num_warned:,} of {report.num_lines:,} {run.noun}s have fields without effect{listed}"
        )
    if report.num_bad == 0:
        return
    shown = _listed(report.bad, report.num_bad)
    if is_lenient:
        say(f"{report.num_bad:,} of {report.num_lines:,} {run.noun}s cannot be submitted{shown}")
        return
    raise InvalidRequest(
        f"{report.num_bad:,} of {report.num_lines:,} {run.noun}s of {source} cannot be submitted, so"
        f" nothing was submitted{shown}\nCorrect them, or run the other {run.noun}s with --lenient."
    )

"""Show each step of a long command and how long it took, on stderr."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from gristmill.shared.cli import people, say

LINE_INTERVAL_S = 10.0


class Step(Protocol):
    """The step that runs now."""

    def tick(self) -> None:
        """Show that time passes; called often."""


@contextmanager
def step(title: str) -> Iterator[Step]:
    """Show a step while it runs, and its duration once it succeeds.

    Args:
        title: Description, such as "starting the worker".
    """
    start_s = time.monotonic()
    with _shown(title, start_s) as shown:
        yield shown
    say(f"  {title}: {time.monotonic() - start_s:.1f} s")


@contextmanager
def _shown(title: str, start_s: float) -> Iterator[Step]:
    if not people().is_terminal:
        yield _StepLines(title, start_s)
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=people(), transient=True) as progress:
        progress.add_task(title, total=None)
        yield _StepSpinner()


class _StepSpinner:
    def tick(self) -> None:
        """Do nothing: rich's own thread turns the spinner."""


class _StepLines:
    def __init__(self, title: str, start_s: float) -> None:
        self._title = title
        self._start_s = start_s
        self._next_s = start_s + LINE_INTERVAL_S

    def tick(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + LINE_INTERVAL_S
            say(f"  {self._title}: {now_s - self._start_s:.0f} s so far")

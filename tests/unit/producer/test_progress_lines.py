"""The progress of a run on terminals of several widths."""

import io
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from gristmill.producer.commands.progress_lines import ProgressLines, ReflowEraser
from gristmill.producer.commands.run_progress import RunProgress
from gristmill.producer.commands.session import absence
from gristmill.producer.commands.tally import Tally

OPERATIONS = Path(__file__).resolve().parents[3] / "docs" / "operations.md"

PROGRESS = RunProgress(
    168,
    400,
    ("168/400 finished (3 failed)", "16 in flight", "216 waiting", "1,234 tok/s"),
    "0:01:07 left",
)
BROKEN = RunProgress(
    0, 9, ("0/9 finished (0 failed)", "9 held by a dead worker"), "no worker is alive"
)


def drawn(progress: RunProgress, width: int) -> list[str]:
    lines = ProgressLines()
    lines.progress = progress
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(lines)
    return capture.get().splitlines()


@pytest.mark.parametrize(
    ("width", "bar", "counts"),
    [
        (120, 40, "168/400 finished (3 failed), 16 in flight, 216 waiting, 1,234 tok/s"),
        (80, 40, "168/400 finished (3 failed), 16 in flight, 216 waiting, 1,234 tok/s"),
        (60, 40, "168/400 finished (3 failed), 16 in flight, 216 waiting"),
        (40, 21, "168/400 finished (3 failed)"),
        (20, 0, "168/400 finished (3\u2026"),
    ],
)
def test_a_narrow_terminal_has_the_first_counts_and_a_whole_bar_or_none(
    width: int, bar: int, counts: str
) -> None:
    above, below = drawn(PROGRESS, width)
    assert above.split("42%, 0:01:07 left")[0].count("\u2501") == pytest.approx(bar * 0.42, abs=1)
    assert above.rstrip().endswith("42%, 0:01:07 left")
    assert below == counts
    assert len(above.rstrip()) == (bar + 1 if bar else 0) + len(" 42%, 0:01:07 left")


def test_a_terminal_of_60_columns_keeps_the_count_of_dead_workers() -> None:
    tally = Tally(5_000, 0.0, num_finished=1_240, num_failed=3)
    progress = tally.progress(Counter(running=9, orphaned=256, queued=3_495))
    assert drawn(progress, 60)[1] == "1,240/5,000 finished (3 failed), 256 held by a dead worker"


@pytest.mark.parametrize("width", range(20, 130, 7))
@pytest.mark.parametrize("progress", [PROGRESS, BROKEN])
def test_no_line_is_wider_than_the_terminal(progress: RunProgress, width: int) -> None:
    lines = drawn(progress, width)
    assert len(lines) == 2
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize(("width", "num_broken"), [(80, 0), (67, 0), (60, 1), (33, 3)])
def test_a_terminal_made_narrower_has_its_broken_rows_erased(
    monkeypatch: pytest.MonkeyPatch, width: int, num_broken: int
) -> None:
    for name in ("XTERM_VERSION", "STY", "TERM"):
        monkeypatch.delenv(name, raising=False)
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, force_interactive=True)
    lines = ProgressLines()
    lines.progress = PROGRESS
    with Live(lines, console=console, auto_refresh=False) as live:
        console.push_render_hook(ReflowEraser(lines, console))
        live.refresh()
        out.truncate(0)
        console.width = width
        live.refresh()
        erased = out.getvalue().count("\x1b[1A")
        console.pop_render_hook()
    assert erased == 1 + num_broken


def test_a_terminal_that_cuts_lines_keeps_what_is_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XTERM_VERSION", "XTerm(379)")
    console = Console(file=io.StringIO(), width=80)
    lines = ProgressLines()
    lines.cells = [59, 67]
    eraser = ReflowEraser(lines, console)
    console.width = 60
    assert eraser.process_renderables([lines]) == [lines]


def test_the_screens_of_the_documents_are_those_of_a_run() -> None:
    page = OPERATIONS.read_text()
    tally = Tally(5_000, 0.0)
    tally.num_finished, tally.num_failed, tally.output_tokens = 1_240, 3, 158_720
    tally.sample(20.0)
    states = Counter({"running": 256, "queued": 3_504})
    assert screen(tally.progress(states)) in page
    tally.sample(25.0, is_served=False)
    states = Counter({"orphaned": 256, "queued": 3_504})
    assert screen(tally.progress(states)) in page
    assert f"```text\n{absence('default', {'w': 0})}\n" in page


def screen(progress: RunProgress) -> str:
    return "\n".join(line.rstrip() for line in drawn(progress, 100)) + "\n```"

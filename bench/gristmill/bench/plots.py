"""Draw the figures of a report as one picture. Only this module imports matplotlib."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from gristmill.bench.bench_report import BenchReport, EngineSample, SetupRun
from gristmill.bench.figures import SetupFigures, setup_figures
from gristmill.bench.setups import ALONE

PANEL_INCHES = (8.5, 3.4)
"""Width and height of a panel with its legend beside the axes."""
NUM_COLUMNS = 2
MAX_POINTS = 200
"""Most points of one line. More samples are averaged, because the SVG would grow to megabytes."""

LONG_RUN = 1.25
"""Right end of a time axis, as a multiple of the median run. One slow run would otherwise squeeze
all others."""

DOTS_PER_INCH = 90

Panel = Callable[[Any], None]


def draw(report: BenchReport, stem: Path) -> list[Path]:
    """Draw a report as PNG and SVG, and return the two files.

    Args:
        report: Report with at least one run.
        stem: Path of the files without a suffix.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels = _panels(report)
    num_lines = -(-len(panels) // NUM_COLUMNS)
    size = (PANEL_INCHES[0] * NUM_COLUMNS, PANEL_INCHES[1] * num_lines)
    with mpl.rc_context({"svg.hashsalt": "gristmill", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(
            num_lines, NUM_COLUMNS, figsize=size, squeeze=False, layout="constrained"
        )
        for panel, axis in zip(panels, axes.flat, strict=False):
            panel(axis)
        for axis in axes.flat[len(panels) :]:
            axis.remove()
        figure.suptitle(_title(report))
        paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
        figure.savefig(paths[0], dpi=DOTS_PER_INCH)
        figure.savefig(paths[1], metadata={"Date": None})
        pyplot.close(figure)
    return paths


def _title(report: BenchReport) -> str:
    engine, load = report.facts["engine"], report.load
    model = Path(engine["models"][0]).name
    device = engine["device"] or engine["transport"]
    return f"{model} on {device}, vLLM {engine['vllm_version']}: {load['name']}, {load['num_requests']:,} requests a run"


def _panels(report: BenchReport) -> list[Panel]:
    """Return a panel for each figure that has values."""
    found = setup_figures(report.runs)
    queued = [row for row in found if row.setup.policy != ALONE]
    colours = {row.setup.label: f"C{i % 10}" for i, row in enumerate(found)}
    bars = partial(partial, _bars, colours=colours)
    speeds = [(row, row.output_tokens_per_s) for row in found]
    panels: list[Panel] = [
        bars(title="output tokens / s", values=speeds), partial(_latency, found=found)
    ]  # fmt: skip
    if any(row.ttft_s.p50 is not None for row in found):
        panels.append(bars(title="TTFT p50, s", values=[(row, row.ttft_s.p50) for row in found]))
        token_times = [(row, 1000 * (row.tpot_s.p50 or 0)) for row in found]
        panels.append(bars(title="TPOT p50, ms", values=token_times))
    panels += _panels_over_time(report.runs, found, colours)
    if any(row.hit_rate for row in found):
        hits = [(row, 100 * (row.hit_rate or 0)) for row in found]
        panels.append(bars(title="prefix cache hits, % of prompt tokens", values=hits))
    if any(row.fairness is not None for row in found):
        fair = [(row, row.fairness) for row in queued]
        panels.append(bars(title="fairness (Jain's index; 1 is equal shares)", values=fair))
    if len({row.setup.size for row in queued} - {0}) > 1:
        panels.append(partial(_curve, found=queued))
    return panels


def _panels_over_time(
    runs: Sequence[SetupRun], found: Sequence[SetupFigures], colours: Mapping[str, str]
) -> list[Panel]:
    """Return the panels of the first round's samples, for the largest size of each other setup."""
    largest = {
        (row.setup.policy, row.setup.scheduling, row.setup.refill): row.setup
        for row in sorted(found, key=_size)
    }
    shown = [
        run for run in runs if run.round == 1 and run.setup in largest.values() and run.samples
    ]
    values: Mapping[str, Callable[[EngineSample], float]] = {
        "running requests": lambda sample: sample.running,
        "KV cache in use, %": lambda sample: 100 * sample.kv_cache_usage,
        "GPU busy, %": lambda sample: 100 * (sample.gpu or 0),
    }
    return [
        partial(_over_time, runs=shown, title=title, value=value, colours=colours)
        for title, value in values.items()
        if any(value(sample) for run in shown for sample in run.samples)
    ]


def _size(row: SetupFigures) -> int:
    return row.setup.size


def _bars(
    axis: Any,
    title: str,
    values: Sequence[tuple[SetupFigures, float | None]],
    colours: Mapping[str, str],
) -> None:
    labels = [row.setup.label for row, _ in values]
    bars = axis.barh(
        labels, [value or 0 for _, value in values], color=[colours[label] for label in labels]
    )
    axis.bar_label(
        bars,
        [
            "" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
            for _, value in values
        ],
        padding=3,
    )
    axis.margins(x=0.15)
    axis.invert_yaxis()
    axis.set_title(title)


def _latency(axis: Any, found: Sequence[SetupFigures]) -> None:
    """Draw the percentiles of e2e, and the median wait in the queue."""
    places = range(len(found))
    for name, height, colour in (("p99", 0.8, "0.85"), ("p95", 0.6, "0.65"), ("p50", 0.4, "0.4")):
        values = [getattr(row.e2e_s, name) or 0 for row in found]
        axis.barh(places, values, height=height, color=colour, label=name)
    waits = [row.wait_s.p50 or 0 for row in found]
    axis.plot(waits, places, "k|", markersize=10, markeredgewidth=2, label="queue wait p50")
    axis.set_yticks(places, [row.setup.label for row in found])
    axis.invert_yaxis()
    axis.set_title("end to end, s")
    _legend(axis)


def _over_time(
    axis: Any,
    runs: Sequence[SetupRun],
    title: str,
    value: Callable[[EngineSample], float],
    colours: Mapping[str, str],
) -> None:
    for run in runs:
        points = thinned([(sample.at_s, value(sample)) for sample in run.samples])
        label = run.setup.label
        axis.plot(*zip(*points, strict=True), label=label, color=colours[label], linewidth=1)
    axis.set_xlim(
        0, min(max(run.seconds for run in runs), LONG_RUN * median(run.seconds for run in runs))
    )
    axis.set_ylim(bottom=0)
    axis.set_title(f"{title}, over time (s)")
    _legend(axis)


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most `MAX_POINTS` points; each is the mean of a run of neighbouring points."""
    step = -(-len(points) // MAX_POINTS)
    chunks = (points[start : start + step] for start in range(0, len(points), step))
    return [(mean(at for at, _ in chunk), mean(value for _, value in chunk)) for chunk in chunks]


def _curve(axis: Any, found: Iterable[SetupFigures]) -> None:
    """Draw throughput over the time in the engine: a line per policy, a point per size."""
    lines: dict[str, list[SetupFigures]] = {}
    for row in sorted(found, key=_size):
        lines.setdefault(f"{row.setup.policy} {row.setup.scheduling}".strip(), []).append(row)
    for name, line in lines.items():
        places = [(row.engine_s.p50 or 0, row.output_tokens_per_s) for row in line]
        axis.plot(*zip(*places, strict=True), "o-", label=name)
        for row, place in zip(line, places, strict=True):
            axis.annotate(str(row.setup.size or ""), place, (3, 3), textcoords="offset points")
    axis.set_xlabel("time in the engine, p50, s")
    axis.set_title("output tokens / s, by batch size")
    _legend(axis)


def _legend(axis: Any) -> None:
    """Draw the legend beside the axes, where it hides nothing."""
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, frameon=False)

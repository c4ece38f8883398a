"""The figures as one picture, drawn from a report; matplotlib is imported here only."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from gristmill.worker.bench.figures import Row, rows
from gristmill.worker.bench.records import Report, Run, Sample
from gristmill.worker.bench.setups import ALONE

PANEL_INCHES = (6.0, 3.6)
NUM_COLUMNS = 2
MAX_POINTS = 200
"""Points of one line; what is sampled more often is averaged, or an SVG grows to megabytes."""

DOTS_PER_INCH = 110
SUFFIXES = (".png", ".svg")


def draw(report: Report, stem: Path) -> list[Path]:
    """Draw a report as PNG and SVG; returns the two files.

    Args:
        report: With at least one run.
        stem: Where, without the suffix.

    Raises:
        ModuleNotFoundError: There is no matplotlib.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    found = rows(report.runs)
    panels = _panels(report, found)
    num_lines = -(-len(panels) // NUM_COLUMNS)
    size = (PANEL_INCHES[0] * NUM_COLUMNS, PANEL_INCHES[1] * num_lines)
    with mpl.rc_context({"svg.hashsalt": "gristmill", "font.size": 9}):
        figure, axes = pyplot.subplots(num_lines, NUM_COLUMNS, figsize=size, squeeze=False)
        for panel, axis in zip(panels, axes.flat, strict=False):
            panel(axis)
        for axis in axes.flat[len(panels) :]:
            axis.remove()
        figure.suptitle(_title(report))
        figure.tight_layout()
        paths = [stem.with_suffix(suffix) for suffix in SUFFIXES]
        for path in paths:
            figure.savefig(
                path, dpi=DOTS_PER_INCH, metadata={"Date": None} if path.suffix == ".svg" else None
            )
        pyplot.close(figure)
    return paths


Panel = Callable[[Any], None]


def _panels(report: Report, found: Sequence[Row]) -> list[Panel]:
    """Return what there is something to show for."""
    colours = _colours(found)
    first = [run for run in report.runs if run.round == 1]
    samples = {run.setup.label: run for run in first if run.samples}
    panels: list[Panel] = [
        lambda axis: _throughput(axis, found, colours),
        lambda axis: _latency(axis, found),
    ]
    if any(row.ttft_s.p50 is not None for row in found):
        panels.append(lambda axis: _tokens(axis, found))
    if samples:
        panels.append(
            lambda axis: _over_time(
                axis, samples, colours, "running requests", lambda each: each.running
            )
        )
        panels.append(
            lambda axis: _over_time(
                axis, samples, colours, "KV cache in use, %", lambda each: 100 * each.kv_cache_usage
            )
        )
    if any(each.gpu is not None for run in first for each in run.samples):
        panels.append(
            lambda axis: _over_time(
                axis, samples, colours, "GPU busy, %", lambda each: 100 * (each.gpu or 0)
            )
        )
    if len({row.setup.size for row in found if row.setup.policy != ALONE}) > 1:
        panels.append(lambda axis: _curve(axis, found))
    return panels


def _colours(found: Sequence[Row]) -> Mapping[str, str]:
    return {row.setup.label: f"C{i % 10}" for i, row in enumerate(found)}


def _title(report: Report) -> str:
    engine = report.facts["engine"]
    model = Path(engine["models"][0]).name if engine["models"] else ""
    return f"{model} on {engine['device'] or engine['transport']}: {report.load['name']}, {report.load['num_requests']:,} requests"


def _throughput(axis: Any, found: Sequence[Row], colours: Mapping[str, str]) -> None:
    labels = [row.setup.label for row in found]
    bars = axis.barh(
        labels, [row.output_tokens_per_s for row in found], color=list(colours.values())
    )
    axis.bar_label(
        bars,
        [f"{row.output_tokens_per_s:,.0f} ({row.requests_per_s:,.2f} req/s)" for row in found],
        padding=3,
    )
    axis.margins(x=0.35)
    axis.invert_yaxis()
    axis.set_xlabel("output tokens / s")


def _latency(axis: Any, found: Sequence[Row]) -> None:
    """Draw e2e's percentiles, and how much of the median one is waiting."""
    places = range(len(found))
    for name, height, colour in (("p99", 0.8, "C7"), ("p95", 0.55, "C0"), ("p50", 0.3, "C1")):
        values = [getattr(row.e2e_s, name) or 0 for row in found]
        axis.barh(
            places, values, height=height, color=colour, alpha=0.75, label=f"end to end {name}"
        )
    waits = [row.wait_s.p50 or 0 for row in found]
    axis.plot(waits, places, "k|", markersize=12, markeredgewidth=2, label="queue wait p50")
    axis.set_yticks(places, [row.setup.label for row in found])
    axis.invert_yaxis()
    axis.set_xlabel("s")
    axis.legend()


def _tokens(axis: Any, found: Sequence[Row]) -> None:
    places = range(len(found))
    axis.barh(
        [place - 0.2 for place in places],
        [row.ttft_s.p50 or 0 for row in found],
        height=0.38,
        label="TTFT p50, s",
    )
    axis.set_xlabel("TTFT, s")
    other = axis.twiny()
    values = [1000 * (row.tpot_s.p50 or 0) for row in found]
    other.barh(
        [place + 0.2 for place in places], values, height=0.38, color="C1", label="TPOT p50, ms"
    )
    other.set_xlabel("TPOT, ms")
    axis.set_yticks(places, [row.setup.label for row in found])
    axis.invert_yaxis()
    handles = [axis.containers[0], other.containers[0]]
    axis.legend(handles, ["TTFT p50", "TPOT p50"])


def _over_time(
    axis: Any,
    samples: Mapping[str, Run],
    colours: Mapping[str, str],
    title: str,
    value: Callable[[Sample], float],
) -> None:
    for label, run in samples.items():
        points = thinned([(each.at_s, value(each)) for each in run.samples])
        axis.plot(*zip(*points, strict=True), label=label, color=colours[label], linewidth=1)
    axis.set_xlabel("s")
    axis.set_ylabel(title)
    axis.set_ylim(bottom=0)
    axis.legend()


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most `MAX_POINTS` points, each the mean of its neighbours."""
    step = -(-len(points) // MAX_POINTS)
    chunks = (points[start : start + step] for start in range(0, len(points), step))
    return [(mean(at for at, _ in chunk), mean(value for _, value in chunk)) for chunk in chunks]


def _curve(axis: Any, found: Sequence[Row]) -> None:
    """Draw throughput over the time in the engine, a line for each policy, a point for each size."""
    lines: dict[str, list[Row]] = {}
    for row in found:
        if row.setup.policy != ALONE and row.engine_s.p50 is not None:
            name = " ".join(filter(None, (row.setup.policy, row.setup.scheduling)))
            lines.setdefault(name, []).append(row)
    for name, line in lines.items():
        line.sort(key=lambda row: row.setup.size)
        x, y = [row.engine_s.p50 for row in line], [row.output_tokens_per_s for row in line]
        axis.plot(x, y, "o-", label=name)
        for row in line:
            axis.annotate(
                str(row.setup.size or ""),
                (row.engine_s.p50, row.output_tokens_per_s),
                xytext=(3, 3),
                textcoords="offset points",
            )
    axis.set_xlabel("time in the engine, p50, s")
    axis.set_ylabel("output tokens / s")
    axis.legend()

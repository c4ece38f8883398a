"""The outcome of one search: its points, its recommendation, and what it took."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from gristmill.bench.tune.candidates import Candidate
from gristmill.bench.tune.comparison import Comparison
from gristmill.bench.tune.engine_pool import EngineStart
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.search import Search
from gristmill.worker.flag_secrets import without_secrets


@dataclass(slots=True)
class TuneReport:
    """One search.

    Attributes:
        goal: Goal of the search.
        engine_argv: The user's flags.
        engine: `EngineInfo` of the first engine.
        sample: Load that was run.
        search: The search with all its points.
        starts: Starts of all engines.
        ended_by: Reason why the search ended; "" while it runs.
        comparison: The best and the start in turns; None if they were not compared.
        spent_s: Seconds that the search has taken so far.
        started_at: Wall-clock time of the start, in ISO format.
    """

    goal: Goal
    engine_argv: Sequence[str]
    engine: dict[str, Any]
    sample: LoadSample
    search: Search
    starts: list[EngineStart]
    ended_by: str = ""
    comparison: Comparison | None = None
    spent_s: float = 0.0
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def best(self) -> MeasuredPoint | None:
        """The best point of the search; None if no point may be chosen.

        If it was compared with the start, this is the point that was compared.
        """
        if self.comparison:
            return self.search.record.point(self.comparison.best)
        return self.search.best

    @property
    def recommended(self) -> MeasuredPoint | None:
        """The point to use: the best, or what won in turns; None if there is none."""
        if self.comparison is None:
            return self.best
        winner = self.comparison.winner(self.goal)
        return self.search.record.point(winner) if winner else None

    @property
    def has_gulps(self) -> bool:
        """True if the worker uses gulps with this engine unless it is told otherwise."""
        return bool(self.engine.get("has_decode_graphs"))

    def as_json(self) -> dict[str, Any]:
        """Return the whole report, without secrets."""
        return {
            "gristmill": version("gristmill"),
            "started_at": self.started_at,
            "ended_by": self.ended_by,
            "spent_s": self.spent_s,
            "goal": asdict(self.goal),
            "sample": asdict(self.sample),
            "engine": self.engine,
            "engine_args": without_secrets(self.engine_argv),
            "start": _candidate_json(self.search.start),
            "best": self.best.as_json() if self.best else None,
            "recommended": self.recommended.as_json() if self.recommended else None,
            "comparison": self.comparison.as_json() if self.comparison else None,
            "points": [point.as_json() for point in self.search.points],
            "starts": [start.as_json() for start in self.starts],
            "pruned": self.search.pruned,
        }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    fields = asdict(candidate)
    return {**fields.pop("setting"), **fields}

"""What a preview predicts, the file `OUT.preview` that keeps it, and how far off it was."""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from gristmill.producer.batches.submit_run import RunRecord
from gristmill.producer.commands.forecast.estimates import Estimate, in_short


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The cost of a whole run.

    Attributes:
        requests: Requests of the run.
        prompt_tokens: All their prompt tokens.
        output_tokens: All their output tokens.
        seconds: Time of the run.
        gpu_hours: That time on all GPUs; None without a GPU.
        pace: Whose pace the time supposes: that of the `preview`, or that of the `queue` before it.
    """

    requests: int
    prompt_tokens: Estimate
    output_tokens: Estimate
    seconds: Estimate
    gpu_hours: Estimate | None
    pace: str

    @staticmethod
    def beside(output: Path) -> Path:
        """Return the path of the prediction for an output."""
        return output.with_name(output.name + ".preview")

    def write(self, output: Path, run: RunRecord) -> None:
        """Write the prediction for a run with this input and these options."""
        kept = {"input_digest": run.input_digest, "fields": run.fields, "prediction": asdict(self)}
        self.beside(output).write_bytes(orjson.dumps(kept, option=orjson.OPT_APPEND_NEWLINE))

    @classmethod
    def read(cls, output: Path, run: RunRecord) -> Self | None:
        """Return the prediction for a run, or None if no preview had its input and options."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            kept = orjson.loads(cls.beside(output).read_bytes())
            fields = orjson.loads(orjson.dumps(run.fields))
            if (kept["input_digest"], kept["fields"]) == (run.input_digest, fields):
                return cls._parsed(kept["prediction"])
        return None

    @classmethod
    def _parsed(cls, facts: Mapping[str, Any]) -> Self:
        names = ("prompt_tokens", "output_tokens", "seconds", "gpu_hours")
        estimates = {name: Estimate(**facts[name]) for name in names if facts[name] is not None}
        return cls(**{**facts, **estimates})

    def in_words(self) -> str:
        """Return the prediction for people."""
        words = (
            f"predicted for all {self.requests:,} requests, with intervals of 90 %:"
            f" {self.prompt_tokens.in_words} prompt tokens, {self.output_tokens.in_words} output tokens,"
            f" {_times(self.seconds)}"
        )
        if self.gpu_hours is None:
            return words
        low, high = (f"{hours:.3g}" for hours in (self.gpu_hours.low, self.gpu_hours.high))
        return f"{words}, {self.gpu_hours.value:.3g} GPU-hours ({low} to {high})"

    def verdict(self, num_ran: int, output_tokens: int, elapsed_s: float) -> str:
        """Return how far off the prediction was.

        Args:
            num_ran: Requests that ran in this process; a resumed run is compared by its share.
            output_tokens: Their output tokens.
            elapsed_s: Seconds that they took.
        """
        share = num_ran / self.requests
        part = "" if num_ran == self.requests else f" for {num_ran:,} of {self.requests:,} requests"
        tokens, seconds = self.output_tokens.times(share), self.seconds.times(share)
        return (
            f"predicted{part} {tokens.in_words} output tokens, {_times(seconds)};"
            f" took {in_short(output_tokens)}, {in_time(elapsed_s)}"
        )


def in_time(seconds: float) -> str:
    """Return a time for people, in the unit that suits it."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _times(seconds: Estimate) -> str:
    if seconds.is_exact:
        return in_time(seconds.value)
    return f"{in_time(seconds.value)} ({in_time(seconds.low)} to {in_time(seconds.high)})"

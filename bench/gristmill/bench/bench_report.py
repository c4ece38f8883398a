"""The measurements of all runs, and the file that keeps them.

`figures.py` computes all figures from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from gristmill.bench.setups import Setup
from gristmill.shared.errors import InvalidRequest

FORMAT = 1
"""Version of the file's format; `load_from` rejects another one."""


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """The times and counts of one request. Moments are seconds since the run began.

    Attributes:
        tenant: Tenant of the request.
        submitted_s: Moment at which the submit was due.
        arrived_s: Moment at which the engine got the request; None if it never did.
        ended_s: Moment of the engine's answer.
        ttft_s: Seconds from the arrival to the first token; None if the engine does not report it.
        status: HTTP status; 0 if the engine never got it.
        prompt_tokens: Prompt tokens as counted by the engine.
        output_tokens: Output tokens as counted by the engine.
    """

    tenant: str
    submitted_s: float
    arrived_s: float | None = None
    ended_s: float | None = None
    ttft_s: float | None = None
    status: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineSample:
    """The engine at one moment.

    Attributes:
        at_s: Seconds since the run began.
        running: Requests that the engine computes.
        waiting: Requests that wait in the engine.
        kv_cache_usage: Used share of the KV cache.
        gpu: Busy share of the GPU's time; None if it cannot be measured.
    """

    at_s: float
    running: int
    waiting: int
    kv_cache_usage: float
    gpu: float | None = None


@dataclass(frozen=True, slots=True)
class SetupRun:
    """One load through one setup.

    Attributes:
        setup: Batch policy, scheduling and size of the run.
        round: Number of the round, from 1.
        seconds: Seconds from the first due request to the last record written.
        requests: In the order of the load.
        samples: In the order of time.
        num_claimed: Requests in the batches that the worker started; 0 without a worker.
        closed_by: Number of these batches for each reason that closed them.
        engine: Growth of the engine's counters.
        first_error: First error answer; "" if no request failed.
    """

    setup: Setup
    round: int
    seconds: float
    requests: list[RequestTiming]
    samples: list[EngineSample]
    num_claimed: int = 0
    closed_by: Mapping[str, int] = field(default_factory=dict)
    engine: Mapping[str, float] = field(default_factory=dict)
    first_error: str = ""


@dataclass(frozen=True, slots=True)
class BenchReport:
    """All runs of one command.

    Attributes:
        facts: Command, versions, device, engine, its arguments and the start time.
        load: Name, seed and token counts of the load.
        runs: In the order in which they ran.
    """

    facts: Mapping[str, Any]
    load: Mapping[str, Any]
    runs: list[SetupRun]

    def save(self, path: Path) -> None:
        """Write everything as JSON."""
        content = {"format": FORMAT, "facts": self.facts, "load": self.load, "runs": self.runs}
        path.write_bytes(orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE))

    @classmethod
    def load_from(cls, path: Path) -> "BenchReport":
        """Read what `save` wrote.

        Raises:
            InvalidRequest: The file is not a report of this version.
        """
        try:
            content = orjson.loads(path.read_bytes())
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']!r} is unknown")  # noqa: TRY301  # one remedy for all
            return cls(content["facts"], content["load"], [_run(each) for each in content["runs"]])
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{path} is not a report of this version of gristmill bench ({error}); give the results.json of a run"
            raise InvalidRequest(message) from None


def _run(fields: dict[str, Any]) -> SetupRun:
    return SetupRun(
        **fields
        | {
            "setup": Setup(**fields["setup"]),
            "requests": [RequestTiming(**each) for each in fields["requests"]],
            "samples": [EngineSample(**each) for each in fields["samples"]],
        }
    )

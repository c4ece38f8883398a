"""What a run leaves behind, and the file that keeps it: everything else is computed from this."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from gristmill.bench.setups import Setup
from gristmill.shared.errors import InvalidRequest

FORMAT = 1
"""Of the file; another one is not read."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One request of a run; seconds since the run began.

    Attributes:
        tenant: Who sent it.
        submitted_s: When it was due, which is when it was submitted unless the submits fell behind.
        arrived_s: When the engine got it; None if it never did.
        ended_s: When the engine answered.
        ttft_s: From its arrival to its first token; None where the engine cannot tell.
        status: HTTP status; 0 if the engine never got it.
        prompt_tokens: As the engine counted them.
        output_tokens: Likewise.
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
class Sample:
    """The engine at one moment.

    Attributes:
        at_s: Since the run began.
        running: Requests in its batch.
        waiting: Requests that it holds beside them.
        kv_cache_usage: Used share of the KV cache.
        gpu: Busy share of the GPU's time; None where nobody can tell.
    """

    at_s: float
    running: int
    waiting: int
    kv_cache_usage: float
    gpu: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One load through one setup.

    Attributes:
        setup: How.
        round: From 1.
        seconds: From the first request that was due to the last record.
        requests: In the order of the load.
        samples: In the order of time.
        num_claimed: Requests in the batches that the worker started; 0 without a worker.
        closed_by: Why those batches were closed, and how many for each reason.
        engine: What the engine's totals grew by.
        first_error: The first answer that was an error, or "".
    """

    setup: Setup
    round: int
    seconds: float
    requests: list[Timed]
    samples: list[Sample]
    num_claimed: int = 0
    closed_by: Mapping[str, int] = field(default_factory=dict)
    engine: Mapping[str, int] = field(default_factory=dict)
    first_error: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All runs of one command.

    Attributes:
        facts: Command, versions, device, engine and its arguments, time.
        load: Its name and what it asks for.
        runs: In the order in which they ran.
    """

    facts: Mapping[str, Any]
    load: Mapping[str, Any]
    runs: list[Run]

    def save(self, path: Path) -> None:
        """Write everything as JSON."""
        content = {"format": FORMAT, "facts": self.facts, "load": self.load, "runs": self.runs}
        path.write_bytes(orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE))

    @classmethod
    def load_from(cls, path: Path) -> "Report":
        """Read what `save` wrote.

        Raises:
            InvalidRequest: The file is none.
        """
        try:
            content = orjson.loads(path.read_bytes())
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']!r} is unknown")  # noqa: TRY301  # one remedy for all
            return cls(content["facts"], content["load"], [_run(each) for each in content["runs"]])
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{path} is no report of this version of gristmill bench ({error}); give its results.json"
            raise InvalidRequest(message) from None


def _run(fields: dict[str, Any]) -> Run:
    return Run(
        **fields
        | {
            "setup": Setup(**fields["setup"]),
            "requests": [Timed(**each) for each in fields["requests"]],
            "samples": [Sample(**each) for each in fields["samples"]],
        }
    )

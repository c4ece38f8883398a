"""Read the rows that every system gets, and write its report of seconds and answers."""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Answers = Mapping[str, tuple[str, int]]
"""Text and number of output tokens of each row, by its custom_id."""


def arguments() -> tuple[Path, Path, list[str]]:
    """Return the input, the report to write, and vLLM's flags."""
    return Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[4:]


def rows(source: Path) -> dict[str, dict[str, Any]]:
    """Return the body of each row by its custom_id."""
    lines = map(json.loads, source.read_text().splitlines())
    return {line["custom_id"]: line["body"] for line in lines}


def openai_answers(bodies: Mapping[str, Mapping[str, Any]]) -> Answers:
    """Return the answers from bodies of the chat API."""
    return {
        name: (body["choices"][0]["message"]["content"], body["usage"]["completion_tokens"])
        for name, body in bodies.items()
    }


class Report:
    """Measures the start, until `is_ready`, and the run, from `is_ready` to `write`."""

    def __init__(self) -> None:
        self.ready_s = 0.0

    def is_ready(self) -> None:
        """Record the time at which the engine waits for requests."""
        self.ready_s = time.time()

    def write(
        self, report: Path, answers: Answers, versions: str, *, run_s: float | None = None
    ) -> None:
        """Write the report. The run ends with this call, unless the system timed it itself."""
        fields = {
            "start_s": self.ready_s - float(os.environ["PEER_SPAWNED_S"]),
            "run_s": time.time() - self.ready_s if run_s is None else run_s,
            "answers": answers,
            "versions": versions,
        }
        report.write_text(json.dumps(fields))

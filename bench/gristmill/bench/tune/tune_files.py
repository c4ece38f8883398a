"""The files of a search: a worker's settings, a script that starts it, and every point."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import orjson

from gristmill.bench.tune.candidates import AUTO, PLAIN, Candidate
from gristmill.bench.tune.engine_flags import flags, without_flags
from gristmill.bench.tune.engine_share import for_each_engine
from gristmill.bench.tune.tune_report import TuneReport

SETTINGS, COMMAND, RESULTS = "settings.env", "worker.sh", "tune.json"


def clear(folder: Path) -> None:
    """Remove the files of an earlier search, which would pass for results of this search."""
    names = (SETTINGS, COMMAND, RESULTS)
    for old in (*(folder / name for name in names), *folder.glob("engine-*.log")):
        old.unlink(missing_ok=True)


def save(report: TuneReport, folder: Path) -> None:
    """Write the results so far; the settings only if some point may be chosen."""
    content = orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2)
    (folder / RESULTS).write_bytes(content)
    if report.recommended is None:  # a point may exceed the bound when it is repeated
        (folder / SETTINGS).unlink(missing_ok=True)
        (folder / COMMAND).unlink(missing_ok=True)
        return
    candidate = report.recommended.candidate
    (folder / SETTINGS).write_text(settings(candidate, has_gulps=report.has_gulps))
    (folder / COMMAND).touch(mode=0o700)  # the flags may hold a key
    (folder / COMMAND).write_text(script(candidate, report.engine_argv))


def settings(candidate: Candidate, *, has_gulps: bool) -> str:
    """Return the worker's settings as an env file without quotes, for a shell or `--env-file`.

    Args:
        candidate: Candidate to use.
        has_gulps: True if the worker uses gulps unless it is told otherwise.
    """
    default = AUTO if has_gulps else PLAIN
    lines = [f"MAX_IN_FLIGHT={candidate.in_flight}"]
    if candidate.refill != default:
        lines.append(f"GRISTMILL_REFILL={candidate.refill}")
    if candidate.engines > 1:
        lines.append(f"GRISTMILL_ENGINES={candidate.engines}")
    return "".join(f"{line}\n" for line in lines)


def script(candidate: Candidate, argv: Sequence[str]) -> str:
    """Return a shell script that starts the worker with the settings beside it."""
    return (
        "#!/bin/sh\n"
        "# Starts the worker that `gristmill tune` recommends. Options of `gristmill worker` may follow.\n"
        f'set -a; . "$(dirname "$0")/{SETTINGS}"; set +a\n'
        f'exec gristmill worker "$@" -- {worker_flags(candidate, argv)}\n'
    )


def worker_flags(candidate: Candidate, argv: Sequence[str]) -> str:
    """Return vLLM's flags for a candidate, quoted for a shell."""
    own = for_each_engine(without_flags(argv), candidate.engines)
    return shlex.join([*own, *flags(candidate.setting)])

"""Be one of several workers; `child_process.py` starts this module as a process."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from gristmill.shared.errors import GristmillError
from gristmill.shared.settings import read_settings
from gristmill.worker.__main__ import run_with_engine
from gristmill.worker.engine.factory import engine_from
from gristmill.worker.engine.interface import Engine
from gristmill.worker.exit_codes import EXIT_SETTINGS
from gristmill.worker.parent.parent_link import ParentLink
from gristmill.worker.settings import WorkerSettings


def main(
    argv: Sequence[str],
    make_engine: Callable[[WorkerSettings, Sequence[str]], Engine] = engine_from,
) -> int:
    """Run the worker that the parent ordered; return its exit code.

    Args:
        argv: Arguments as `child_process.py` writes them: options of the parent, `--`, and vLLM's flags.
        make_engine: Makes the engine from the settings and vLLM's flags.
    """
    words, flags = _parsed(argv)
    link = ParentLink(words.engine, words.parent, words.report_fd, words.turn_fd, words.num_sharing)
    link.follow_parent()
    if words.cores:
        os.sched_setaffinity(0, [int(core) for core in words.cores.split(",")])
    try:
        settings = read_settings(WorkerSettings)
        return run_with_engine(settings, make_engine(settings, flags), link)
    except GristmillError as error:
        sys.stderr.write(f"gristmill worker, engine {link.engine}: {error}\n")
        return EXIT_SETTINGS


def _parsed(argv: Sequence[str]) -> tuple[argparse.Namespace, Sequence[str]]:
    """Return the parent's words, and vLLM's flags, which follow `--`."""
    split = list(argv).index("--")
    parser = argparse.ArgumentParser(prog="gristmill.worker.parent.engine_child")
    parser.add_argument("--engine", required=True)
    parser.add_argument("--cores", default="")
    for name in ("--parent", "--report-fd", "--turn-fd", "--num-sharing"):
        parser.add_argument(name, type=int, required=True)
    return parser.parse_args(argv[:split]), argv[split + 1 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

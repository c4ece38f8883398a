"""The command `gristmill tune`."""

import os
import re
import sys
from pathlib import Path

import click

from gristmill.shared.cli import FiniteRange
from gristmill.worker.commands import FLAGS, EngineCommand, scale_option

UNITS = {"s": 1, "m": 60, "h": 3600}


def _seconds(context: click.Context, parameter: click.Parameter, text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if not found or not float(found[1]):
        raise click.BadParameter(f"{text!r}: a time is a number with s, m or h, such as 90s or 30m")
    return float(found[1]) * UNITS[found[2]]


@click.command(cls=EngineCommand)
@click.option(
    "--sample",
    required=True,
    metavar="FILE|NAME",
    help="A JSONL file of your requests, as submit takes them; or lognormal, uniform, bimodal, shared-prefix, tenants.",
)
@click.option(
    "--budget",
    "budget_s",
    default="30m",
    show_default=True,
    metavar="TIME",
    callback=_seconds,
    help="Time for the whole search with all engine starts; only the first start may exceed it.",
)
@click.option(
    "--max-p95-s",
    type=FiniteRange(0, min_open=True),
    metavar="SECONDS",
    help="Largest p95 from a request's claim to its answer.  [default: none, throughput alone]",
)
@click.option(
    "--requests",
    type=click.IntRange(1),
    metavar="N",
    help="Requests in the sample.  [default: all of a file; 512 of a named load]",
)
@click.option(
    "--engines",
    "max_engines",
    type=click.IntRange(1),
    metavar="N",
    help="Most engines to try on one device; 1 gives the whole device to one engine.  [default: 4 on a GPU, 1 on a CPU]",
)
@scale_option
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of a named load's lengths and prompts.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tune-results"),
    show_default=True,
    help="Folder for the settings, all points and the engines' logs.",
)
@click.argument("engine_argv", nargs=-1, type=click.UNPROCESSED, required=True, metavar=FLAGS)
def tune(
    *,
    sample: str,
    budget_s: float,
    max_p95_s: float | None,
    requests: int | None,
    max_engines: int | None,
    scale: float,
    seed: int,
    out: Path,
    engine_argv: tuple[str, ...],
) -> None:
    """Find the fastest settings of the engine and its worker for your model, card and load.

    The words after `--` are vLLM's own flags, as `gristmill worker` takes them. The search begins
    with their values. It tries sequences, tokens per step, requests in flight and, on a GPU,
    several engines, gulps and captured graphs. At the end it measures the best and your flags in
    turns.

    gristmill tune --sample my.jsonl --budget 20m -- --model Qwen/Qwen3-8B

    Exit codes: 0 settings are written; 1 no point keeps the bound; 2 wrong option or line of the
    sample; 4 the engine does not start with your flags.
    """
    from gristmill.bench.tune.goal import Goal
    from gristmill.bench.tune.load_sample import LoadSample
    from gristmill.bench.tune.run_tune import TuneOptions, run_tune
    from gristmill.shared.log import configure_logging
    from gristmill.shared.setting_names import warn_of_misspelt

    warn_of_misspelt(os.environ)  # the log drops warnings from here on
    configure_logging("ERROR")
    options = TuneOptions(
        sample=LoadSample(sample, requests, seed, scale),
        budget_s=budget_s,
        goal=Goal(max_p95_s),
        out=out,
        engine_argv=engine_argv,
        max_engines=max_engines,
    )
    sys.exit(run_tune(options))

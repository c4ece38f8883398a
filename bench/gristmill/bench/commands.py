"""The command `gristmill bench`."""

import os
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from gristmill.shared.cli import FiniteRange
from gristmill.worker.commands import FLAGS, EngineCommand, scale_option

CSV = "separated by commas"


def _policies(context: click.Context, parameter: click.Parameter, text: str | None) -> list[str]:
    from gristmill.bench.setups import POLICIES

    return _known(text, POLICIES)


def _schedulings(context: click.Context, parameter: click.Parameter, text: str | None) -> list[str]:
    from gristmill.bench.setups import SCHEDULINGS

    return _known(text, SCHEDULINGS)


def _known(text: str | None, known: Collection[str]) -> list[str]:
    names = _parts(text)
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r} is unknown; use {', '.join(known)}")
    return names


def _sizes(context: click.Context, parameter: click.Parameter, text: str | None) -> list[int]:
    sizes = [int(part) if part.isdecimal() else 0 for part in _parts(text)]
    if not all(1 <= size <= 4096 for size in sizes):
        raise click.BadParameter(f"{text!r}: a size is a whole number from 1 to 4096")
    return sizes


def _parts(text: str | None) -> list[str]:
    """Return the words between the commas; an option that is not given has no words."""
    if text is None:
        return []
    parts = [part for each in text.split(",") if (part := each.strip())]
    if not parts:
        raise click.BadParameter("the list is empty; leave the option out for its default")
    return parts


@click.command(cls=EngineCommand)
@click.option(
    "--load",
    default="lognormal",
    show_default=True,
    metavar="NAME|FILE",
    help="lognormal, uniform, bimodal, shared-prefix, tenants, or a JSONL file as submit takes it.",
)
@click.option(
    "--requests",
    type=click.IntRange(1),
    metavar="N",
    help="Requests in each run.  [default: 256; all of a file]",
)
@scale_option
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of lengths, prompts and arrivals."
)
@click.option(
    "--rate",
    type=FiniteRange(0, min_open=True),
    metavar="REQ/S",
    help="Mean requests per second, as Poisson arrivals.  [default: all at once]",
)
@click.option(
    "--policies",
    metavar="NAMES",
    callback=_policies,
    help=f"Batch policies, {CSV}.  [default: all]",
)
@click.option(
    "--scheduling",
    "schedulings",
    metavar="NAMES",
    callback=_schedulings,
    help=f"Scheduling orders, {CSV}.  [default: the worker's]",
)
@click.option(
    "--batch-size",
    "--sizes",
    "sizes",
    metavar="NUMBERS",
    callback=_sizes,
    help=f"Requests in the engine at a time; several sizes, {CSV}, give a curve.  [default: the engine's max_num_seqs]",
)
@click.option(
    "--refill",
    "refills",
    metavar="NUMBERS",
    callback=_sizes,
    help=f"Free places that a full engine waits for, {CSV}; 1 refills each at once. Compares continuous only, unless --policies names others.  [default: the worker's]",
)
@click.option(
    "--batch-timeout-ms",
    type=FiniteRange(0, 600_000),
    default=50.0,
    show_default=True,
    metavar="MS",
    help="Most milliseconds to fill a batch, for policies that wait.",
)
@click.option(
    "--rounds",
    "num_rounds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Runs of each setup; the setups take turns.",
)
@click.option(
    "--warm-up",
    "num_warm_up",
    type=click.IntRange(0),
    default=16,
    show_default=True,
    metavar="N",
    help="Requests that run first and are not counted.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench-results"),
    show_default=True,
    help="Folder for tables, plots and all measurements.",
)
@click.option(
    "--redis-url",
    metavar="URL",
    envvar=["GRISTMILL_REDIS_URL", "REDIS_URL"],
    help="URL of Redis; the runs delete their queues at their end."
    "  [env: REDIS_URL; default: an embedded server]",
)
@click.option(
    "--vllm-url",
    metavar="URL",
    envvar=["GRISTMILL_VLLM_URL", "VLLM_URL"],
    help="URL of an OpenAI-compatible server to use instead of an engine in this process."
    "  [env: VLLM_URL; default: none]",
)
@click.option(
    "--plot",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="JSON",
    help="results.json of an earlier bench; its tables and plots are written again, without a run.",
)
@click.argument("engine_argv", nargs=-1, type=click.UNPROCESSED, metavar=f"[{FLAGS}]")
@click.pass_context
def bench(context: click.Context, /, plot: Path | None, **options: Any) -> None:
    """Run a load through the batch policies on your engine, and compare them.

    The words after `--` are vLLM's own flags, as `gristmill worker` takes them. Without flags, the
    demo's model runs on the CPU.

    gristmill bench --load lognormal --requests 256 -- --model Qwen/Qwen3-8B --max-num-seqs 256

    docs/bench.md explains each column. Exit codes: 0 success; 2 wrong option or line of a file;
    3 Redis does not answer; 4 the engine did not start or refuses the load.
    """
    from gristmill.bench.report_files import rewrite_report
    from gristmill.bench.run_bench import BenchOptions, run_bench
    from gristmill.shared.log import configure_logging
    from gristmill.shared.setting_names import warn_of_misspelt

    warn_of_misspelt(os.environ)  # the log drops warnings from here on
    configure_logging("ERROR")
    if plot:
        rewrite_report(plot)
    else:
        run_bench(BenchOptions(**options, command=_command(context)))  # fmt: skip


def _command(context: click.Context) -> str:
    """Return the command line that repeats this bench, without URLs and keys (maybe secret)."""
    from gristmill.worker.flag_secrets import without_secrets

    words = ["gristmill", "bench"]
    for parameter in context.command.params:
        name = parameter.name or ""
        is_given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if is_given and isinstance(parameter, click.Option) and not name.endswith("_url"):
            value = context.params[name]
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [parameter.opts[0], text]
    if context.params["engine_argv"]:
        words += ["--", *without_secrets(context.params["engine_argv"])]
    return shlex.join(words)

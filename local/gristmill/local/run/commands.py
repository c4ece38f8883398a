"""The command `gristmill run`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gristmill.producer.commands.submit_options import submit_options
from gristmill.shared.cli import queue_options
from gristmill.worker.commands import FLAGS, EngineCommand, engines_option

if TYPE_CHECKING:
    from gristmill.producer.commands.submit_options import SubmitArguments
    from gristmill.shared.settings import QueueSettings


class RunCommand(EngineCommand):
    """A command with inputs before `--` and vLLM's flags after it."""

    has_inputs = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before `--`; the rest becomes the parameter `flags`."""
        end = args.index("--") if "--" in args else len(args)
        with self.flags_explained(ctx, args):
            rest = click.Command.parse_args(self, ctx, args[:end])
        ctx.params["flags"] = tuple(args[end + 1 :])
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the parts of the usage line."""
        return [*super().collect_usage_pieces(ctx), f"[{FLAGS}]"]


@click.command(cls=RunCommand)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="File for the rows. For a table, .jsonl, .csv or .parquet.",
)
@engines_option
@click.option(
    "--devices",
    metavar="LIST",
    help="NVIDIA devices to use, as a list such as 0,1, or all; each group that an engine needs gets"
    " N engines.  [env: GRISTMILL_DEVICES; default: all]",
)
@submit_options
@queue_options
def run(
    *,
    given: "SubmitArguments",
    output: Path,
    engines: str | None,
    devices: str | None,
    flags: tuple[str, ...],
    settings: "QueueSettings",
) -> int:
    """Run a JSONL file or a table on this machine: start Redis and workers, write the rows, stop them.

    The words after -- are vLLM's own flags, as `vllm serve` takes them:

    gristmill run reviews.csv -o labels.parquet --prompt "Good or bad? {text}" --max-tokens 512 -- --model Qwen/Qwen3-8B

    INPUT: a JSONL file or a table; see `gristmill submit --help`. The workers use all NVIDIA
    devices, or else the CPU. The output has its rows in their order if the input is a table.

    The same command resumes an interrupted run. It runs no row again that is in the output.

    With REDIS_URL and nothing after --, other workers run the requests, as with `gristmill submit
    --wait`. With REDIS_URL and flags, the command starts workers on a
    new queue of that Redis.

    Exits with 0 if all requests succeeded, 1 if some failed.
    """
    if not flags:
        from gristmill.local.run.fleet_run import run_on_fleet

        return run_on_fleet(given, output, settings, has_devices=bool(engines or devices))
    if click.get_current_context().params["queue"]:
        raise click.UsageError(
            "--queue names a queue that other workers serve, and the workers of this command have a queue of their"
            " own; leave --queue out, or vLLM's flags after --"
        )
    from gristmill.local.own_workers import check_packages

    check_packages("gristmill run", "run", "install-run-cpu")
    from gristmill.local.run.engine_plan import EnginePlan
    from gristmill.local.run.own_run import run_on_own_workers

    return run_on_own_workers(given, output, settings, EnginePlan.read(flags, engines, devices))

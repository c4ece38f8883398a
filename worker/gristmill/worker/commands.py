"""Define the command `gristmill worker`, and the parts that commands with vLLM's flags share."""

import shlex
import sys

import click

from gristmill.shared.cli import FiniteRange
from gristmill.shared.settings import read_settings

FLAGS = "-- VLLM_FLAGS..."

scale_option = click.option(
    "--scale",
    type=FiniteRange(0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="X",
    help="Factor for the lengths of a named load; 0.25 suits a CPU.",
)
"""The option `--scale`, which `bench` and `tune` share."""


class EngineCommand(click.Command):
    """A command that takes vLLM's flags, and explains a vLLM flag that has no `--` before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; report an unknown option as one of vLLM's."""
        given = list(args)  # the parser empties the list
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from gristmill.worker.engine.vllm.arguments import without_secrets

            ours, flags = self._parted(given)
            raise click.UsageError(
                f"{error.option_name} is no option of {ctx.command_path}; vLLM's own flags follow --:"
                f" {ctx.command_path}{' ...' if ours else ''} -- {shlex.join(without_secrets(flags))}",
                ctx,
            ) from None

    def _parted(self, words: list[str]) -> tuple[list[str], list[str]]:
        """Return this command's options and vLLM's flags; each value follows its option."""
        known = {name for parameter in self.params for name in parameter.opts}
        ours: list[str] = []
        flags: list[str] = []
        into = flags
        for word in words:
            if word.startswith("-"):
                into = ours if word.partition("=")[0] in known else flags
            if word != "--":
                into.append(word)
        return ours, flags


@click.command(cls=EngineCommand)
@click.option(
    "--redis-url", help="URL of Redis.  [env: REDIS_URL; default: redis://localhost:6379/0]"
)
@click.option(
    "--queue",
    help="Name of the queue, or several names with weights: interactive:3,bulk:1."
    "  [env: GRISTMILL_QUEUE; default: default]",
)
@click.option(
    "--vllm-url",
    help="URL of an OpenAI-compatible server to use instead of an engine in this process."
    "  [env: VLLM_URL; default: none]",
)
@click.option(
    "--engines",
    metavar="N",
    help="Number of engines on the same device or devices, or auto, which means 1."
    "  [env: GRISTMILL_ENGINES; default: 1]",
)
@click.option(
    "--devices",
    metavar="LIST",
    help="NVIDIA devices to use, as a list such as 0,1, or all; each group that an engine needs gets"
    " N engines.  [env: GRISTMILL_DEVICES; default: vLLM chooses one group]",
)
@click.argument("engine_argv", nargs=-1, type=click.UNPROCESSED, metavar=f"[{FLAGS}]")
def worker(engine_argv: tuple[str, ...], **options: str | None) -> None:
    """Claim requests and run them on vLLM until a signal stops it.

    The words after `--` are vLLM's own flags, as `vllm serve` takes them:

    gristmill worker -- --model Qwen/Qwen3-8B --max-num-seqs 1024

    A small model leaves a card idle; --engines 3 runs three engines on it.

    Every other setting is an environment variable; see docs/settings.md. The exit code is 0 after a
    drain. It is 1 if the engine could not start or keeps dying. It is 2 if a setting is wrong or
    Redis refuses the login.
    """
    from gristmill.worker.__main__ import run_worker
    from gristmill.worker.settings import WorkerSettings

    sys.exit(run_worker(read_settings(WorkerSettings, **options), engine_argv))

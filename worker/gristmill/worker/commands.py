"""Define the command `gristmill worker`, and the parts that commands with vLLM's flags share."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import click

from gristmill.shared.cli import FiniteRange
from gristmill.shared.settings import read_settings

FLAGS = "-- VLLM_FLAGS..."

TYPO = 0.8
"""Least likeness of a mistyped option to the true one; --max-num-seqs, a flag of vLLM, has 0.6 to --max-tokens."""

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
    """A command that takes vLLM's flags, and explains a vLLM flag that has no `--` before it.

    Attributes:
        has_inputs: True if the first words may be inputs of the command, and not only vLLM's flags.
    """

    has_inputs = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; report an unknown option as one of vLLM's."""
        with self.flags_explained(ctx, list(args)):  # the parser empties the list
            return super().parse_args(ctx, args)

    @contextmanager
    def flags_explained(self, ctx: click.Context, words: Sequence[str]) -> Iterator[None]:
        """Turn the error about an unknown option into one that shows where vLLM's flags stand.

        Args:
            ctx: Context of the command.
            words: All words of the command line.
        """
        try:
            yield
        except click.NoSuchOption as error:
            from gristmill.worker.flag_secrets import without_secrets

            told = f"{error.option_name} is no option of {ctx.command_path}"
            near = get_close_matches(error.option_name, error.possibilities or (), 1, TYPO)
            if near:
                raise click.UsageError(f"{told}; did you mean {near[0]}?", ctx) from None
            ours, flags = self._parted(words)
            raise click.UsageError(
                f"{told}; vLLM's own flags follow --:"
                f" {ctx.command_path}{' ...' if ours else ''} -- {shlex.join(without_secrets(flags))}",
                ctx,
            ) from None

    def _parted(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return this command's words and vLLM's flags; each value follows its option."""
        end = words.index("--") if "--" in words else len(words)
        known = {name for parameter in self.params for name in parameter.opts}
        ours: list[str] = []
        flags: list[str] = []
        into = ours if self.has_inputs else flags
        for word in words[:end]:
            if word.startswith("-"):
                into = ours if word.partition("=")[0] in known else flags
            into.append(word)
        return ours, [*flags, *words[end + 1 :]]


engines_option = click.option(
    "--engines",
    metavar="N",
    help="Number of engines on the same device or devices, or auto, which means 1."
    "  [env: GRISTMILL_ENGINES; default: 1]",
)
"""The option `--engines`, which `worker` and `run` share."""


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
@engines_option
@click.option(
    "--devices",
    metavar="LIST",
    help="NVIDIA devices to use, as a list such as 0,1, or all; each group that an engine needs gets"
    " N engines.  [env: GRISTMILL_DEVICES; default: vLLM chooses one group]",
)
@click.option(
    "--until-empty",
    is_flag=True,
    default=None,
    help="End when the queue is empty and no producer is submitting.  [env: GRISTMILL_UNTIL_EMPTY]",
)
@click.argument("engine_argv", nargs=-1, type=click.UNPROCESSED, metavar=f"[{FLAGS}]")
def worker(engine_argv: tuple[str, ...], **options: Any) -> None:
    """Claim requests and run them on vLLM until a signal stops it.

    The words after `--` are vLLM's own flags, as `vllm serve` takes them:

    gristmill worker -- --model Qwen/Qwen3-8B --max-num-seqs 1024

    A small model leaves a card idle; --engines 3 runs three engines on it.

    Every other setting is an environment variable; see docs/settings.md. The exit code is 0 after a
    drain, which a signal starts, or with --until-empty an empty queue. It is 1 if the engine could not
    start or keeps dying. It is 2 if a setting is wrong or Redis refuses the login.
    """
    from gristmill.worker.__main__ import run_worker
    from gristmill.worker.settings import WorkerSettings

    sys.exit(run_worker(read_settings(WorkerSettings, **options), engine_argv))

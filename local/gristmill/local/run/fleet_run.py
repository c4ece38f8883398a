"""One `gristmill run` on the workers of a queue. It needs no package of a worker."""

import sys
from pathlib import Path

import click

from gristmill.producer.commands.submission import Submission
from gristmill.producer.commands.submit_options import SubmitArguments
from gristmill.producer.commands.submit_sources import opened_run
from gristmill.shared.settings import QueueSettings

EXAMPLE = "Qwen/Qwen3-8B"
"""Model in the messages if the command line names none."""


def run_on_fleet(
    given: SubmitArguments, output: Path, settings: QueueSettings, *, has_devices: bool
) -> int:
    """Run the input on the workers of a queue, as `gristmill submit --wait` does.

    Args:
        given: Input and options.
        output: File for the rows.
        settings: Redis, queue and limits.
        has_devices: True if an option names engines or devices.

    Raises:
        click.UsageError: There is neither a Redis nor a model.
    """
    model = given.table.values["model"] or EXAMPLE
    if "redis_url" not in settings.model_fields_set:
        raise click.UsageError(
            "nothing says which model runs the requests; end the command with vLLM's flags after --, such as:"
            f" -- --model {model}; or set REDIS_URL, if workers run already"
        )
    if has_devices:
        raise click.UsageError(
            "--engines and --devices are for workers of this command; end it with vLLM's flags after --, such as:"
            f" -- --model {model}; or leave the options out"
        )
    options = given.options(wait=True, output=output)
    with opened_run(given.sources, given.table, options) as source:
        return Submission(source, options, settings, sys.argv[1:]).execute()

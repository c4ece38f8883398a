"""One `gristmill run` that starts workers, from its arguments to its exit code."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gristmill.local.processes import stopped_by_sigterm
from gristmill.local.run.engine_plan import EnginePlan
from gristmill.local.run.own_queue import own_queue, queue_to_be
from gristmill.local.run.run_engines import RunEngines
from gristmill.producer.batches.submit_run import check_apart
from gristmill.producer.commands.forecast.forecast_options import OwnModel
from gristmill.producer.commands.submission import Submission
from gristmill.producer.commands.submit_options import SubmitArguments
from gristmill.producer.commands.submit_sources import opened_run
from gristmill.producer.window_size import window_of
from gristmill.shared.cli import redis_errors
from gristmill.shared.settings import QueueSettings
from gristmill.worker.engine.vllm.model_flags import ModelFlags
from gristmill.worker.flag_secrets import without_secrets


def run_on_own_workers(
    given: SubmitArguments,
    output: Path,
    settings: QueueSettings,
    plan: EnginePlan,
) -> int:
    """Run the input on workers that this command starts, and stop them.

    Args:
        given: Input and options.
        output: File for the rows.
        settings: Redis and limits; without a URL, the command starts a Redis, too.
        plan: The engines.

    Raises:
        GristmillError: A package is missing, the engine does not start, or a process has ended.
    """
    options = given.options(wait=True, output=output, window=window_of(plan.num_engines))
    options = replace(options, forecast=replace(given.forecast, model=_model(plan.flags)))
    log = output.with_name(output.name + ".log")
    for name in given.sources:
        check_apart(name, log)
    is_preview = given.forecast.preview is not None
    if given.forecast.dry_run:
        queue = queue_to_be(settings, output, is_forced=given.force)
        with opened_run(given.sources, given.table, options) as source:
            engines = RunEngines(queue, plan, log)
            return Submission(source, options, queue.settings, [], engines).execute()
    with (
        stopped_by_sigterm(),
        opened_run(given.sources, given.table, options) as source,
        own_queue(settings, output, is_forced=given.force, is_passing=is_preview) as queue,
        redis_errors(queue.settings.redis_url.get_secret_value()),
    ):
        engines = RunEngines(queue, plan, log)
        submission = Submission(source, options, queue.settings, _shown(plan.flags), engines)
        code = submission.execute()
        if not is_preview:
            queue.delete()
    return code


def _shown(flags: Sequence[str]) -> list[str]:
    """Return the arguments of this process, which end with vLLM's flags, without the secrets of these."""
    return [*sys.argv[1 : len(sys.argv) - len(flags)], *without_secrets(flags)]


def _model(flags: Sequence[str]) -> OwnModel | None:
    """Return the model of the engines; None if only a file of flags names it."""
    read = ModelFlags.read(flags)
    if read.model is None:
        return None
    return OwnModel(
        name=read.model,
        tokenizer=read.tokenizer or read.model,
        revision=read.tokenizer_revision or read.revision,
        max_model_len=read.max_model_len,
    )

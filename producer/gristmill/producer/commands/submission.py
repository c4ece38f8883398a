"""One `gristmill submit` or `gristmill run` from its checked options to its exit code."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
from ulid import ULID

from gristmill.producer.batches.rows import LineReader
from gristmill.producer.batches.submit_run import InputReport, RunRecord, is_of_one_run
from gristmill.producer.commands.collect import submit_only
from gristmill.producer.commands.resume import ResumeHint, resume_command
from gristmill.producer.commands.run_workers import RunWorkers
from gristmill.producer.commands.session import (
    absence,
    on_client,
    on_queue,
    print_json,
)
from gristmill.producer.commands.submit_checks import conflict_in_words, refuse_bad_lines
from gristmill.producer.commands.submit_options import SubmitOptions
from gristmill.producer.commands.submit_runs import RunInput, RunOutput, RunSource
from gristmill.producer.commands.waited_run import RUN_AGAIN, CheckedRun, WaitedRun
from gristmill.shared.cli import say
from gristmill.shared.fleet import Fleet
from gristmill.shared.fleet_cache import read_fleet
from gristmill.shared.pauses import pause_in_words
from gristmill.shared.queue import Queue
from gristmill.shared.redis_eviction import warn_of_eviction
from gristmill.shared.settings import QueueSettings


class Submission:
    """Check a file, submit it, and with `--wait` collect its rows.

    Args:
        source: What is submitted: lines of requests, or a table.
        options: Options of the command.
        settings: Redis, queue and limits.
        arguments: Arguments of this process, for the command that resumes the run.
        workers: Workers to start once the input has passed its checks; None if others serve the queue.
    """

    def __init__(
        self,
        source: RunSource,
        options: SubmitOptions,
        settings: QueueSettings,
        arguments: Sequence[str],
        workers: RunWorkers | None = None,
    ) -> None:
        self._source = source
        self._options = options
        self._settings = settings
        self._arguments = arguments
        self._workers = workers
        self._fleet: Fleet | None = None

    def execute(self) -> int:
        """Run the command and return the exit code: 0 if all succeeded, 1 if some failed.

        Raises:
            InvalidRequest: The input is wrong, or the output belongs to another run. Nothing was
                submitted.
            GristmillError: The workers of this command do not start, or have ended.
        """
        if not (self._workers and self._options.forecast.dry_run):  # else there is no queue yet
            self._fleet = on_queue(self._settings, self._look)
        if self._options.output is None:
            return self._execute(None)
        with self._source.open_output(self._options.output) as output:
            return self._execute(output)

    async def _look(self, queue: Queue) -> Fleet:
        """Return what the workers serve. Without `--wait`, also report that no worker is alive."""
        if not self._options.wait:
            stats, name = await queue.stats(), queue.keys.queue
            for problem in (
                absence(name, stats.workers),
                pause_in_words(name, stats.pauses, self._options.fields.get("batch") or ""),
            ):
                if problem:
                    say(problem)
        await warn_of_eviction(queue.redis, self._settings.redis_url.get_secret_value())
        return await read_fleet(queue)

    def _execute(self, output: RunOutput | None) -> int:
        run, is_resume = self._run(output)
        if run.finished is not None:
            return self._tell_finished(run, run.finished)
        reader = self._reader(run.run, is_new=not (is_resume or self._options.run))
        batch_input, report = self._source.checked(reader, output, is_resume=is_resume)
        refuse_bad_lines(
            report, self._source, source=self._options.source, is_lenient=self._options.lenient
        )
        checked = CheckedRun(
            source=self._source,
            batch_input=batch_input,
            report=report,
            record=run,
            is_resume=is_resume,
        )
        if (code := self._forecast(checked)) is not None:
            return code
        resumed = ", resumed" if is_resume else ""
        say(f"run {run.run}: {self._source.in_words(report)}, queue {run.queue}{resumed}")
        command = resume_command(self._arguments, run.run, has_output=output is not None)
        hint = ResumeHint(
            command=command,
            is_piped=self._options.source == "-",
            has_other_workers=self._workers is None,
            kept_queue=run.queue if is_of_one_run(run.queue) else "",
            hidden_flags=self._workers.hidden_flags if self._workers else (),
        )
        with hint.on_interrupt(), hint.on_disk_error(self._options.output or "stdout"):
            if not self._options.wait:
                return self._submit_only(batch_input, report, run)
            return WaitedRun(checked, self._options, self._settings, self._workers).execute(output)

    def _forecast(self, run: CheckedRun) -> int | None:
        """Answer a question that takes the place of the run; return the exit code, or None without a question."""
        if self._options.forecast.dry_run:
            from gristmill.producer.commands.forecast.dry_run import DryRun

            return DryRun(run, self._options, self._fleet).execute()
        if self._options.forecast.preview is not None:
            from gristmill.producer.commands.forecast.preview import Preview

            return Preview(run, self._options, self._settings, self._workers).execute()
        return None

    def _tell_finished(self, run: RunRecord, totals: Mapping[str, Any]) -> int:
        way_on = RUN_AGAIN if totals["failed"] else ""
        say(
            f"run {run.run} has finished: {totals['total']:,} rows are there already ({totals['failed']:,} failed)"
            f"{way_on}"
        )
        if self._options.as_json:
            print_json({"run": run.run, "queue": run.queue} | dict(totals))
        return 1 if totals["failed"] else 0

    def _run(self, output: RunOutput | None) -> tuple[RunRecord, bool]:
        """Return the run, and True if the output shows that it began earlier.

        Raises:
            InvalidRequest: The earlier run had another input or other options.
        """
        input_bytes, input_digest = self._source.fingerprint()
        endpoint = {"endpoint": self._options.endpoint} if self._options.endpoint else {}
        now = RunRecord(
            run=self._options.run or str(ULID()),
            queue=self._settings.queue,
            input_bytes=input_bytes,
            input_digest=input_digest,
            fields=self._options.fields | endpoint | dict(self._source.facts) | self._worker_facts,
        )
        earlier = output.begun_run(is_forced=self._options.force) if output else None
        if earlier is None:
            return now, False
        earlier.check_same(now if self._options.run else replace(now, run=earlier.run))
        return earlier, True

    @property
    def _worker_facts(self) -> dict[str, Any]:
        return dict(self._workers.facts) if self._workers else {}

    def _reader(self, run: str, *, is_new: bool) -> LineReader:
        """Return the reader of lines. Only for a new run, it checks that workers serve their models.

        A resumed run may have results for models that no worker serves now.
        """
        return LineReader(
            run,
            max_request_bytes=self._settings.max_request_bytes,
            default_endpoint=self._options.endpoint,
            defaults=self._options.fields,
            refuses_unknown=self._options.refuses_unknown,
            fleet=self._fleet if is_new and self._settings.check_models else None,
        )

    def _submit_only(self, batch_input: RunInput, report: InputReport, run: RunRecord) -> int:
        with conflict_in_words(run.run, self._source.noun):
            num_submitted = on_client(
                self._settings, lambda client: submit_only(client, batch_input, report.num_lines)
            )
        if self._options.as_json:
            facts = {"submitted": num_submitted, "bad_lines": report.num_bad}
            print_json({"run": run.run, "queue": run.queue} | facts)
        else:
            click.echo(run.run)
        command = resume_command(self._arguments, run.run, has_output=False, is_collecting=True)
        say(f"submitted {num_submitted:,}; collect the results with: {command}")
        return 1 if report.num_bad else 0

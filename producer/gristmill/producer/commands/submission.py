"""One `gristmill submit` from its checked options to its exit code."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click
from ulid import ULID

from gristmill.producer.batches.rows import LineReader
from gristmill.producer.batches.submit_run import InputReport, RunRecord, WrittenRows
from gristmill.producer.commands.collect import Collection, submit_only
from gristmill.producer.commands.resume import disk_hint, hint_on_interrupt, resume_command
from gristmill.producer.commands.session import (
    absence,
    on_client,
    on_queue,
    print_json,
    stdout_bytes,
)
from gristmill.producer.commands.submit_checks import conflict_in_words, refuse_bad_lines
from gristmill.producer.commands.submit_runs import RunInput, RunOutput, RunSource
from gristmill.producer.commands.tally import Tally
from gristmill.shared.cli import say
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.fleet import Fleet
from gristmill.shared.fleet_cache import read_fleet
from gristmill.shared.pauses import pause_in_words
from gristmill.shared.queue import Queue
from gristmill.shared.redis_eviction import warn_of_eviction
from gristmill.shared.settings import QueueSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """The options of one `gristmill submit`.

    Attributes:
        source: Name of the input in messages; `-` for stdin.
        wait: True to wait for the results and write their rows.
        output: File that gets the rows; None for stdout.
        lenient: True to run the good lines of a file that has bad ones.
        refuses_unknown: True makes lines with body fields that the engine ignores bad lines.
        window: Most unfinished requests at a time.
        run: Name of the run; None for that of the output, or a new one.
        force: True to begin a new run although the output has rows.
        as_json: True to print the summary as JSON.
        endpoint: Endpoint of lines that name none; None for the one that suits the body.
        fields: Fields of `Request` for lines that do not set them.
    """

    source: str
    wait: bool
    output: Path | None
    lenient: bool
    refuses_unknown: bool
    window: int
    run: str | None
    force: bool
    as_json: bool
    endpoint: str | None
    fields: dict[str, Any]


class Submission:
    """Check a file, submit it, and with `--wait` collect its rows.

    Args:
        source: What is submitted: lines of requests, or a table.
        options: Options of the command.
        settings: Redis, queue and limits.
    """

    def __init__(self, source: RunSource, options: SubmitOptions, settings: QueueSettings) -> None:
        self._source = source
        self._options = options
        self._settings = settings
        self._fleet: Fleet | None = None
        self._totals: dict[str, Any] = {}

    def execute(self) -> int:
        """Run the command and return the exit code: 0 if all succeeded, 1 if some failed.

        Raises:
            InvalidRequest: The input is wrong, or the output belongs to another run. Nothing was
                submitted.
        """
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
        resumed = ", resumed" if is_resume else ""
        say(f"run {run.run}: {self._source.in_words(report)}, queue {run.queue}{resumed}")
        command = resume_command(sys.argv[1:], run.run, has_output=output is not None)
        is_piped = self._options.source == "-"
        where = self._options.output or "stdout"
        with (
            hint_on_interrupt(command, is_piped=is_piped),
            disk_hint(where, command, is_piped=is_piped),
        ):
            if not self._options.wait:
                return self._submit_only(batch_input, report, run)
            if output is None:
                return self._collect(batch_input, report, run, None, None)
            written = self._begin(output, run, report, is_resume)
            try:
                code = self._collect(batch_input, report, run, output, written)
                output.finish(self._totals)
            except InvalidRequest:
                if (
                    self._options.run and not is_resume
                ):  # without --run only the record has the name
                    output.forget_run()
                raise
            return code

    def _tell_finished(self, run: RunRecord, totals: Mapping[str, Any]) -> int:
        say(
            f"run {run.run} has finished: {totals['total']:,} rows are there already ({totals['failed']:,} failed)"
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
            fields=self._options.fields | endpoint | dict(self._source.facts),
        )
        earlier = output.begun_run(is_forced=self._options.force) if output else None
        if earlier is None:
            return now, False
        earlier.check_same(now if self._options.run else replace(now, run=earlier.run))
        return earlier, True

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

    def _begin(
        self, output: RunOutput, run: RunRecord, report: InputReport, is_resume: bool
    ) -> WrittenRows:
        if not is_resume:
            output.begin(run)
        written = output.keep_whole_rows(run.run, report.num_lines)
        if is_resume:
            say(f"{written.num_finished:,} rows are there already ({written.num_failed:,} failed)")
        return written

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
        command = resume_command(sys.argv[1:], run.run, has_output=False, is_collecting=True)
        say(f"submitted {num_submitted:,}; collect the results with: {command}")
        return 1 if report.num_bad else 0

    def _collect(
        self,
        batch_input: RunInput,
        report: InputReport,
        run: RunRecord,
        output: RunOutput | None,
        written: WrittenRows | None,
    ) -> int:
        num_finished, num_failed = (written.num_finished, written.num_failed) if written else (0, 0)
        tally = Tally(
            report.num_lines, time.monotonic(), num_finished=num_finished, num_failed=num_failed
        )
        tally.example = written.example if written else ""
        finished = written.finished if written else None
        with conflict_in_words(run.run, self._source.noun):
            on_client(
                self._settings,
                lambda client: Collection(
                    client,
                    batch_input=batch_input,
                    run=run.run,
                    write=output.append if output else partial(_write_to, stdout_bytes()),
                    sync=output.sync if output else None,
                    tally=tally,
                    finished=finished,
                    noun=self._source.noun,
                ).run(self._options.window),
            )
        self._totals = self._source.totals(report) | _counts(tally)
        self._summarise(run, tally)
        return 1 if tally.num_failed else 0

    def _summarise(self, run: RunRecord, tally: Tally) -> None:
        now_s = time.monotonic()
        if self._options.as_json:
            print_json(
                {"run": run.run, "queue": run.queue}
                | self._totals
                | {"elapsed_s": round(tally.elapsed_s(now_s), 3)}
            )
        if tally.num_earlier < tally.total:
            say(tally.summary(now_s))
        if tally.example:
            see = f"; see {self._options.output}" if self._options.output else ""
            say(f"{tally.num_failed:,} of {tally.total:,} failed, e.g. {tally.example}{see}")


def _counts(tally: Tally) -> dict[str, int]:
    """Return the counts of a run for its summary."""
    return {
        "total": tally.total,
        "succeeded": tally.num_finished - tally.num_failed,
        "failed": tally.num_failed,
        "finished_earlier": tally.num_earlier,
        "prompt_tokens": tally.prompt_tokens,
        "output_tokens": tally.output_tokens,
    }


def _write_to(stream: BinaryIO, row: bytes) -> None:
    stream.write(row)
    stream.flush()

"""A run whose command waits: it writes a row for each result and prints the summary.

`submission.py` calls it once the input has passed its checks.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from gristmill.producer.batches.submit_run import Appended, InputReport, RunRecord, WrittenRows
from gristmill.producer.client import Client
from gristmill.producer.commands.collect import Collection
from gristmill.producer.commands.forecast.prediction import Prediction
from gristmill.producer.commands.run_workers import RunWorkers, WatchWorkers, unless_lost
from gristmill.producer.commands.session import on_client, print_json, stdout_bytes
from gristmill.producer.commands.submit_checks import conflict_in_words
from gristmill.producer.commands.submit_options import SubmitOptions
from gristmill.producer.commands.submit_runs import RunInput, RunOutput, RunSource
from gristmill.producer.commands.tally import Tally
from gristmill.shared.cli import say
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.settings import QueueSettings

RUN_AGAIN = "; --force runs all rows again"
"""What can follow a finished run that has failed rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRun:
    """A run whose input has passed its checks.

    Attributes:
        source: What is run.
        batch_input: The input.
        report: Outcome of the check.
        record: Name, queue and options of the run.
        is_resume: True if the output shows that the run began earlier.
    """

    source: RunSource
    batch_input: RunInput
    report: InputReport
    record: RunRecord
    is_resume: bool

    @property
    def num_requests(self) -> int:
        """Rows that workers run: neither bad, nor without a value, nor copies."""
        return self.report.num_lines - self.report.num_bad - sum(self._unrun.values())

    @property
    def num_failing(self) -> int:
        """Rows that fail without a request."""
        is_skipping = self.source.facts.get("skip_null", False)
        return self.report.num_bad + (0 if is_skipping else self._unrun.get("nulls", 0))

    @property
    def _unrun(self) -> Mapping[str, int]:
        return self.source.totals(self.report)


class WaitedRun:
    """The rows of one run, from the first request to the summary.

    Args:
        run: The checked run.
        options: Options of the command.
        settings: Redis, queue and limits.
        workers: Workers to start for this run; None if others serve the queue.
    """

    def __init__(
        self,
        run: CheckedRun,
        options: SubmitOptions,
        settings: QueueSettings,
        workers: RunWorkers | None,
    ) -> None:
        self._run = run
        self._options = options
        self._settings = settings
        self._workers = workers

    def execute(self, output: RunOutput | None) -> int:
        """Write the rows that are not there yet; return 0 if all requests succeeded, 1 if some failed.

        Args:
            output: Output of the rows; None for stdout.

        Raises:
            InvalidRequest: The queue has other requests under the name of the run.
            GristmillError: The workers of this command do not start, or have ended.
        """
        if output is None:
            stdout = partial(_write_to, stdout_bytes())
            tally = self._collected(stdout, None, None, None)
        else:
            tally = self._written(output)
        return 1 if tally.num_failed else 0

    def _written(self, output: RunOutput) -> Tally:
        """Write all rows to an output, and return their counts."""
        tally = self._appended(output)
        with self._forgotten_if_refused(output):
            output.finish(self._totals(tally))
        return tally

    @contextmanager
    def _forgotten_if_refused(self, output: RunOutput) -> Iterator[None]:
        """Leave nothing of a new run that is refused after its record was written."""
        try:
            yield
        except InvalidRequest:
            if self._options.run and not self._run.is_resume:
                output.forget_run()  # without --run-name only the record has the name
            raise

    def _appended(self, output: RunOutput) -> Tally:
        """Append the rows that are not there yet, and return the counts of all.

        A new run begins only when its workers have started: a run that names a wrong model leaves nothing.
        """
        written = self._earlier_rows(output) if self._run.is_resume else None
        with self._serving(written) as lost:
            if written is None:
                output.begin(self._run.record)
                written = self._whole_rows(output)
            has_readers = output.keeps_results and self._workers is None
            sync = None if has_readers else output.sync
            with self._forgotten_if_refused(output):
                return self._collected(output.append, sync, written, lost)

    def _serving(self, written: WrittenRows | None) -> AbstractContextManager[WatchWorkers | None]:
        """Return what runs this command's workers; they do not start if all rows are there already."""
        if self._workers is None or (written and self._is_finished(written)):
            return nullcontext()
        return self._workers.running()

    def _earlier_rows(self, output: RunOutput) -> WrittenRows:
        written = self._whole_rows(output)
        way_on = RUN_AGAIN if written.num_failed and self._is_finished(written) else ""
        say(
            f"{written.num_finished:,} rows are there already ({written.num_failed:,} failed){way_on}"
        )
        return written

    def _is_finished(self, written: WrittenRows) -> bool:
        return written.num_finished >= self._run.report.num_lines

    def _whole_rows(self, output: RunOutput) -> WrittenRows:
        return output.keep_whole_rows(self._run.record.run, self._run.report.num_lines)

    def _collected(
        self,
        write: Callable[[bytes], Appended | None],
        sync: Callable[[], None] | None,
        written: WrittenRows | None,
        lost: WatchWorkers | None,
    ) -> Tally:
        """Run the lines that have no row yet, and return the counts of all."""
        run, total = self._run, self._run.report.num_lines
        earlier = written or WrittenRows(bytearray(total + 1))
        tally = Tally(
            total,
            time.monotonic(),
            num_finished=earlier.num_finished,
            num_failed=earlier.num_failed,
            num_cut=earlier.num_cut,
        )
        tally.example = earlier.example

        async def collect(client: Client) -> None:
            collection = Collection(
                client,
                batch_input=run.batch_input,
                run=run.record.run,
                write=write,
                sync=sync,
                tally=tally,
                finished=earlier.finished,
                noun=run.source.noun,
                workers_log=self._workers.log if self._workers else None,
            )
            await unless_lost(collection.run(self._options.window), lost)

        with conflict_in_words(run.record.run, run.source.noun):
            on_client(self._settings, collect)
        self._summarise(tally)
        return tally

    def _totals(self, tally: Tally) -> dict[str, int]:
        """Return the counts of the run, which its summary has, and the record of a table."""
        return self._run.source.totals(self._run.report) | {
            "total": tally.total,
            "succeeded": tally.num_finished - tally.num_failed,
            "failed": tally.num_failed,
            "cut": tally.num_cut,
            "finished_earlier": tally.num_earlier,
            "prompt_tokens": tally.prompt_tokens,
            "output_tokens": tally.output_tokens,
        }

    def _predicted(self) -> Prediction | None:
        """Return what a preview has predicted for this run."""
        output = self._options.output
        return Prediction.read(output, self._run.record) if output else None

    def _summarise(self, tally: Tally) -> None:
        """Print the counts of the run and what this process has done."""
        now_s = time.monotonic()
        if self._options.as_json:
            facts: dict[str, Any] = {"run": self._run.record.run, "queue": self._run.record.queue}
            elapsed = {"elapsed_s": round(tally.elapsed_s(now_s), 3)}
            print_json(facts | self._totals(tally) | elapsed)
        if tally.num_earlier < tally.total:
            say(tally.summary(now_s))
        if tally.num_cut:
            say(
                f"{tally.num_cut:,} of {tally.total:,} answers were cut at their limit of tokens"
                " (max_tokens, or the model's length)"
            )
        if (predicted := self._predicted()) and tally.num_ran:
            say(predicted.verdict(tally.num_ran, tally.seen_tokens, tally.elapsed_s(now_s)))
        if tally.example:
            see = f"; see {self._options.output}" if self._options.output else ""
            say(f"{tally.num_failed:,} of {tally.total:,} failed, e.g. {tally.example}{see}")


def _write_to(stream: BinaryIO, row: bytes) -> None:
    stream.write(row)
    stream.flush()

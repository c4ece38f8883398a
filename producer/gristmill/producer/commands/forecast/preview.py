"""`--preview`: run a sample of a checked input, show its answers, and predict the cost of all rows."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import orjson
from ulid import ULID

from gristmill.producer.batches.rows import result_row
from gristmill.producer.client import Client
from gristmill.producer.commands.answer_table import ShownAnswer, answer_table, prompt_of
from gristmill.producer.commands.display import display
from gristmill.producer.commands.forecast.estimates import Estimate
from gristmill.producer.commands.forecast.prediction import Prediction
from gristmill.producer.commands.forecast.row_sample import evenly, requests_of_rows, spread_rows
from gristmill.producer.commands.forecast.worker_devices import read_devices
from gristmill.producer.commands.run_progress import RunProgress
from gristmill.producer.commands.run_workers import RunWorkers, WatchWorkers, unless_lost
from gristmill.producer.commands.session import on_client, print_json
from gristmill.producer.commands.submit_options import SubmitOptions
from gristmill.producer.commands.waited_run import CheckedRun
from gristmill.shared.answers import mapping
from gristmill.shared.chunking import chunks
from gristmill.shared.cli import people, say
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.operations import IDS_A_CALL
from gristmill.shared.request import Request
from gristmill.shared.results import Result
from gristmill.shared.settings import QueueSettings

NUM_SHOWN = 20
"""Most answers in the table."""

CANDIDATES = 4
"""Rows that are drawn for each row of the preview, because copies and rows with nulls do not run."""


@dataclass(slots=True)
class Sample:
    """The requests of a preview and what became of them.

    Attributes:
        rows: Number of the row -> its request, which has an id of the preview.
        results: Id of the request -> its result.
        before: Estimated tokens that the queue settled in a second before the preview; None if not known.
        num_devices: Worker -> its devices, of all live workers.
        is_gpu: True if the devices are GPUs.
    """

    rows: dict[int, Request]
    results: dict[str, Result] = field(default_factory=dict)
    before: float | None = None
    num_devices: dict[str, int] = field(default_factory=dict)
    is_gpu: bool = False


class Preview:
    """One preview.

    Args:
        run: The checked run.
        options: Options of the command.
        settings: Redis, queue and limits.
        workers: Workers to start for the preview; None if others serve the queue.
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

    def execute(self) -> int:
        """Run the sample and tell people; return 0 if all its requests succeeded, else 1.

        Raises:
            InvalidRequest: The output belongs to an unfinished run, or no row is a request.
            GristmillError: The workers of this command do not start, or have ended.
        """
        if self._run.is_resume:
            raise InvalidRequest(
                f"{self._options.output} belongs to the unfinished run {self._run.record.run}; resume it without"
                " --preview, or name another output"
            )
        sample = Sample(self._chosen())
        say(f"preview: {len(sample.rows):,} of {self._run.num_requests:,} requests run")
        with self._serving() as lost:
            on_client(
                self._settings,
                lambda client: unless_lost(_ask(client, sample), lost),
                is_quiet=False,
            )
        prediction = predicted(sample, self._run.num_requests)
        if prediction and self._options.output:
            prediction.write(self._options.output, self._run.record)
        return 1 if self._tell(sample, prediction) else 0

    def _serving(self) -> AbstractContextManager[WatchWorkers | None]:
        if self._workers is None:
            return nullcontext()
        return self._workers.running()

    def _chosen(self) -> dict[int, Request]:
        """Return requests that are spread over the input, under ids of their own and in no batch."""
        rows, wanted = self._run.report.num_lines, self._options.forecast.preview or 0
        read = partial(requests_of_rows, self._run.batch_input, rows)
        running = [row for row, _ in read(spread_rows(rows, wanted * CANDIDATES))]
        if not running:
            raise InvalidRequest(
                "none of the rows that were drawn is a request; correct the input, or run it without --preview"
            )
        name = f"preview-{ULID()}"
        chosen = read(evenly(running, wanted))
        return {row: replace(request, id=f"{name}-{row}", batch="") for row, request in chosen}

    def _tell(self, sample: Sample, prediction: Prediction | None) -> int:
        """Show answers and prediction; return the number of failed requests."""
        shown = {row: self._shown(sample, request) for row, request in sample.rows.items()}
        failed = {row: each.error for row, each in shown.items() if each.error}
        if self._options.as_json:
            print_json(self._facts(shown, prediction) | {"failed": len(failed)})
        people().print(answer_table(list(shown.values()), NUM_SHOWN))
        if failed:
            row, error = next(iter(failed.items()))
            say(
                f"{len(failed):,} of {len(shown):,} failed, e.g. {self._run.source.noun} {row:,}: {error}"
            )
        if prediction is None:
            say("too few answers for a prediction")
        else:
            say(prediction.in_words())
            say(_assumption(sample, prediction))
        return len(failed)

    def _shown(self, sample: Sample, request: Request) -> ShownAnswer:
        result = sample.results[request.id]
        fields, error = self._run.source.shown(orjson.loads(result_row(result)))
        return ShownAnswer(
            prompt=prompt_of(mapping(orjson.loads(request.body))),
            fields=fields,
            output_tokens=result.tokens[1],
            error=error,
        )

    def _facts(
        self, shown: Mapping[int, ShownAnswer], prediction: Prediction | None
    ) -> dict[str, Any]:
        """Return what the preview has found, for a program."""
        rows = [{"row": row, **asdict(each)} for row, each in shown.items()]
        return {"requests": self._run.num_requests, "rows": rows, "prediction": prediction}


async def _ask(client: Client, sample: Sample) -> None:
    """Run the requests of a sample, and leave nothing of them in Redis."""
    requests = list(sample.rows.values())
    ids, total = [request.id for request in requests], len(requests)
    sample.before = (await client.queue.stats()).tokens_per_s
    try:
        with display() as shown:
            async for result in client.as_completed(requests, window=total):
                sample.results[result.id] = result
                num = len(sample.results)
                if num == total or shown.interval_s < 1:
                    shown.show(RunProgress(num, total, (f"{num:,}/{total:,} finished",)))
        sample.num_devices, sample.is_gpu = await read_devices(client.queue)
    finally:
        await client.cancel(ids)
        for chunk in chunks(ids, IDS_A_CALL):
            await client.queue.forget(chunk)


def predicted(sample: Sample, num_requests: int) -> Prediction | None:
    """Return what all requests cost; None if fewer than two have an answer.

    The time is that of the faster pace: of the preview, or of the queue before it.

    Args:
        sample: The sample with its results.
        num_requests: Requests of the whole run.
    """
    results = [result for result in sample.results.values() if result.is_success]
    if len(results) < min(2, num_requests):
        return None
    prompt, output = ([result.tokens[side] for result in results] for side in (0, 1))
    sizes = [sum(result.tokens) or 1 for result in results]
    span_s = _span_s(results)
    busy, live = _num_devices(sample, results)
    alone = Estimate.of_total(sizes, num_requests).times(span_s / sum(sizes))
    seconds, pace = alone.times(busy / live), "preview"
    if sample.before:
        costs = [request.prompt_tokens + request.max_tokens for request in sample.rows.values()]
        queued = Estimate.of_total(costs, num_requests).times(1 / sample.before)
        if queued.value < seconds.value:
            seconds, pace = queued, "queue"
    return Prediction(
        requests=num_requests,
        prompt_tokens=Estimate.of_total(prompt, num_requests),
        output_tokens=Estimate.of_total(output, num_requests),
        seconds=seconds,
        gpu_hours=seconds.times(live / 3600) if sample.is_gpu else None,
        pace=pace,
    )


def _span_s(results: Sequence[Result]) -> float:
    """Return the seconds from the first request to the last answer."""
    begin = min(result.enqueued_ms for result in results)
    return max(1, max(result.finished_ms for result in results) - begin) / 1000


def _num_devices(sample: Sample, results: Sequence[Result]) -> tuple[int, int]:
    """Return the devices of the workers that answered, and those of all live workers."""
    answered = {result.worker for result in results}
    busy = sum(sample.num_devices.get(worker, 1) for worker in answered)
    return busy, max(busy, sum(sample.num_devices.values()))


def _assumption(sample: Sample, prediction: Prediction) -> str:
    """Return at which pace the time of a prediction is meant."""
    busy, live = _num_devices(sample, list(sample.results.values()))
    if prediction.pace == "queue":
        return f"time at the latest pace of the queue, with all its {live:,} devices, if nobody else uses them"
    share = f", and {busy:,} of {live:,} devices ran it" if busy < live else ""
    return (
        f"time at the pace of this preview, {len(sample.rows):,} requests at a time{share}; with more requests at a"
        " time an engine is faster, so a long run takes less"
    )

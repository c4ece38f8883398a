"""`gristmill demo`: start Redis and a worker, run a file of requests, print answers and speed."""

import shutil
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ulid import ULID

from gristmill.local.demo.demo_answers import demo_answers
from gristmill.local.own_workers import check_packages, running_workers
from gristmill.local.processes import LoggedProcess, running_process, stopped_by_sigterm
from gristmill.local.redis_server import embedded_server
from gristmill.local.steps import step
from gristmill.producer.batches.rows import LineReader
from gristmill.producer.batches.submit_run import (
    InputFile,
    OutputFile,
    RunRecord,
    check_apart,
    fingerprint,
)
from gristmill.producer.client import Client
from gristmill.producer.commands.answer_table import answer_table
from gristmill.producer.commands.collect import Collection
from gristmill.producer.commands.run_workers import WatchWorkers, unless_lost
from gristmill.producer.commands.session import on_client, on_queue
from gristmill.producer.commands.tally import Tally
from gristmill.producer.window_size import WINDOW
from gristmill.shared.cli import made_folder, people, redis_errors, say
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.queue import Queue
from gristmill.shared.settings import QueueSettings, read_settings

REQUESTS = Path(__file__).with_name("requests.jsonl")
MODEL_TIMEOUT_S = 600.0
NUM_SHOWN = 8
NO_REDIS = "redis://localhost"
"""URL for settings that are read before the embedded Redis has one; nothing connects to it."""

ENGINE_ARGUMENTS = ("--enforce-eager", "--max-num-seqs", "64", "--max-model-len", "2048")
WORKER_ENVIRONMENT = {
    "GRISTMILL_START_TIMEOUT_S": "600",
    "HF_HUB_OFFLINE": "1",
}
_PRINT_MODEL = """
import sys
from pathlib import Path
from gristmill.shared.errors import GristmillError
from gristmill.local.demo_model import demo_model
try:
    print(demo_model(Path(sys.argv[1])))
except GristmillError as error:
    sys.exit(str(error))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One demo.

    Attributes:
        requests: JSONL file of requests.
        output: File for the rows; overwritten.
        cache: Folder for the model and the logs.
        redis_url: Redis to use; None starts an embedded one.
        model: Model for vLLM; None takes the demo model.
    """

    requests: Path
    output: Path
    cache: Path
    redis_url: str | None
    model: str | None

    def run(self) -> int:
        """Run the demo and return 0 if all requests succeeded, 1 if some failed.

        Raises:
            GristmillError: An option is wrong, a package is missing, or a step failed; the message
                says what to do.
        """
        with stopped_by_sigterm(), ExitStack() as stack:
            output = self._check_options(stack)
            check_packages("the demo", "demo", "demo")
            settings, server = self._start_redis(stack)
            model = self.model or self._prepare_model()
            flags = ["--model", model, *ENGINE_ARGUMENTS]
            lost = stack.enter_context(
                running_workers(settings, flags, self._log, WORKER_ENVIRONMENT, server=server)
            )
            code = self._run_requests(settings, output, lost)
            with step("stopping the worker and Redis"):
                stack.close()
        command = "gristmill" if shutil.which("gristmill") else sys.argv[0]
        say(f"\nAll rows are in {self.output}. Next: {command} submit --help")
        return code

    @property
    def _log(self) -> Path:
        return self.cache / "demo-worker.log"

    def _check_options(self, stack: ExitStack) -> OutputFile:
        """Check the options before anything starts; return the output, open but not yet emptied."""
        settings = read_settings(QueueSettings, redis_url=self.redis_url or NO_REDIS)
        self._read_requests("check", settings)
        check_apart(str(self.requests), self.output, RunRecord.beside(self.output))
        output = stack.enter_context(OutputFile(self.output))
        made_folder(self.cache, "--cache")
        if self.redis_url is not None:
            with redis_errors(self.redis_url):
                on_queue(settings, Queue.stats)
        return output

    def _read_requests(self, run: str, settings: QueueSettings) -> tuple[InputFile, int]:
        """Check the file of requests, and return it with the number of its lines."""
        reader = LineReader(run, max_request_bytes=settings.max_request_bytes)
        batch_input = InputFile(self.requests, reader)
        report = batch_input.check()
        if report.bad or not report.num_lines:
            reason = report.bad[0] if report.bad else "it has no requests"
            raise InvalidRequest(f"{self.requests}: {reason}")
        return batch_input, report.num_lines

    def _start_redis(self, stack: ExitStack) -> tuple[QueueSettings, LoggedProcess | None]:
        """Return the settings of the demo's queue, and the embedded server unless Redis was named."""
        with step("starting a Redis of its own" if self.redis_url is None else "using Redis"):
            server = None if self.redis_url else stack.enter_context(embedded_server())
        url = server.url if server else self.redis_url
        settings = read_settings(QueueSettings, redis_url=url, queue=f"demo-{ULID()}")
        return settings, server.process if server else None

    def _prepare_model(self) -> str:
        command = [sys.executable, "-c", _PRINT_MODEL, str(self.cache)]
        log = self.cache / "demo-model.log"
        with (
            step("preparing the model, SmolLM2-135M (once)") as shown,
            running_process("the model's preparation", command, log, {}, 0) as process,
        ):
            return process.wait(shown, MODEL_TIMEOUT_S)

    def _run_requests(self, settings: QueueSettings, output: OutputFile, lost: WatchWorkers) -> int:
        say(f"  running: gristmill submit {self.requests.name} --wait -o {self.output}")
        with redis_errors(settings.redis_url.get_secret_value()):
            tally = self._collect(settings, output, lost)
        elapsed_s = tally.elapsed_s(time.monotonic())
        people().print(answer_table(demo_answers(self.requests, self.output), NUM_SHOWN))
        say(
            f"{tally.num_finished:,} requests in {elapsed_s:.1f} s, {tally.num_failed:,} failed;"
            f" {tally.prompt_tokens:,} prompt tokens, {tally.output_tokens:,} output tokens,"
            f" {tally.output_tokens / elapsed_s:,.0f} tok/s"
        )
        return 1 if tally.num_failed else 0

    def _collect(self, settings: QueueSettings, output: OutputFile, lost: WatchWorkers) -> Tally:
        size, digest = fingerprint(self.requests)
        run = RunRecord(
            run=str(ULID()), queue=settings.queue, input_bytes=size, input_digest=digest, fields={}
        )
        batch_input, num_lines = self._read_requests(run.run, settings)
        output.begin(run)
        tally = Tally(num_lines, time.monotonic())

        async def collect(client: Client) -> None:
            collection = Collection(
                client,
                batch_input=batch_input,
                run=run.run,
                write=output.append,
                tally=tally,
                workers_log=self._log,
            )
            await unless_lost(collection.run(WINDOW), lost)

        on_client(settings, collect)
        return tally

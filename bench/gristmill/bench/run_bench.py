"""Run one `gristmill bench`: start Redis and engine, measure, write the report."""

import asyncio
import os
import platform
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop

from gristmill.bench import loads
from gristmill.bench.bench_report import BenchReport, SetupRun
from gristmill.bench.gpu_use import gpu_meter
from gristmill.bench.progress_display import waiting
from gristmill.bench.recording_engine import RecordingEngine
from gristmill.bench.report_files import RESULTS, clear_old_files, write_report
from gristmill.bench.rounds import Plan, run_rounds
from gristmill.bench.runs import RunContext
from gristmill.bench.setups import POLICIES, setups
from gristmill.local.demo_model import demo_model
from gristmill.local.redis_server import running_server
from gristmill.shared.cli import cache_folder, made_folder, redis_errors, say
from gristmill.shared.connection import connect
from gristmill.shared.settings import read_settings
from gristmill.worker.engine import Engine, EngineInfo, engine_from
from gristmill.worker.settings import WorkerSettings

DEFAULT_REQUESTS = 256
DEMO_ARGUMENTS = ("--enforce-eager", "--max-num-seqs", "64", "--max-model-len", "2048")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Options of the command line; `commands.py` explains each."""

    load: str
    requests: int | None
    scale: float
    seed: int
    rate: float | None
    policies: list[str]
    schedulings: list[str]
    sizes: list[int]
    refills: list[int]
    batch_timeout_ms: float
    num_rounds: int
    num_warm_up: int
    out: Path
    redis_url: str | None
    vllm_url: str | None
    engine_argv: tuple[str, ...]
    command: str

    def plan(self) -> Plan:
        """Return the runs that the options ask for.

        Raises:
            SettingsError: No load has this name.
            InvalidRequest: A line of the file is no request.
        """
        return Plan(
            load=self._loader(),
            setups=setups(self._policies(), self.schedulings, self.sizes, self.refills),
            num_rounds=self.num_rounds,
            rate=self.rate,
            seed=self.seed,
            num_warm_up=self.num_warm_up,
        )

    def _policies(self) -> list[str]:
        """Return the policies to compare; with refills, only the one that refills."""
        return self.policies or (["continuous"] if self.refills else [*POLICIES])

    def _loader(self) -> Any:
        if path := loads.file_of(self.load):
            load = loads.from_file(path, self.requests)
            return lambda _: load
        number = self.requests or DEFAULT_REQUESTS
        loads.named(self.load, 1)  # an unknown name raises before the engine starts
        return lambda round_number: loads.named(
            self.load, number, self.seed + round_number, self.scale
        )


def run_bench(options: BenchOptions, engine: Engine | None = None) -> BenchReport:
    """Measure, then write and print the tables and draw the plots.

    Args:
        options: Options of the command line.
        engine: Engine that is not started yet; by default the engine that the options ask for.

    Returns:
        The report.

    Raises:
        GristmillError: A setting is wrong, or the engine or Redis did not start; the message says
            what to do.
    """
    plan = options.plan()
    settings = read_settings(WorkerSettings, vllm_url=options.vllm_url)
    observed = RecordingEngine(engine or _engine(settings, options.engine_argv))
    made_folder(options.out)
    with ExitStack() as stack:
        url = options.redis_url or stack.enter_context(running_server())
        stack.enter_context(redis_errors(url))
        runs: list[SetupRun] = []
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                report = runner.run(_measured(options, plan, observed, url, runs))
        except KeyboardInterrupt:
            kept = f"the runs that had ended are in {options.out / RESULTS}"
            say(f"  stopped; {kept if runs else 'no run had ended'}")
            raise
    write_report(report, options.out)
    return report


def _engine(settings: WorkerSettings, argv: tuple[str, ...]) -> Engine:
    if not argv and not settings.vllm_url:
        argv = ("--model", str(demo_model(cache_folder())), *DEMO_ARGUMENTS)
    return engine_from(settings, argv)


async def _measured(
    options: BenchOptions, plan: Plan, engine: RecordingEngine, url: str, runs: list[SetupRun]
) -> BenchReport:
    """Start the engine, measure, close it. Each run that ends is appended to `runs` and saved."""
    async with connect(url) as redis:
        await redis.ping()  # a wrong URL fails before the engine starts, which takes minutes
    server = engine.evidence().get("vllm_url")
    what = f"waiting until {server}/health answers" if server else "starting the engine"
    try:
        async with waiting(what):
            info = await engine.start()
        report = BenchReport(_facts(options, engine, info), _load_facts(options, plan), runs)

        def keep(run: SetupRun) -> None:
            if not report.runs:
                clear_old_files(options.out)
            report.runs.append(run)
            report.save(options.out / RESULTS)

        gpu = gpu_meter(info.num_devices) if info.transport == "in_process" else None
        context = RunContext(
            engine=engine,
            info=info,
            redis_url=url,
            batch_timeout_ms=options.batch_timeout_ms,
            gpu=gpu,
        )
        await run_rounds(context, plan, keep)
    finally:
        await engine.close()
    return report


def _facts(options: BenchOptions, engine: RecordingEngine, info: EngineInfo) -> dict[str, Any]:
    return {
        "command": options.command,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "gristmill": version("gristmill"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "num_cores": os.cpu_count(),
        "engine": asdict(replace(info, body_schemas={})),
        "engine_args": engine.evidence().get("engine_args", []),
        "batch_timeout_ms": options.batch_timeout_ms,
    }


def _load_facts(options: BenchOptions, plan: Plan) -> dict[str, Any]:
    load = plan.load(1)
    return {
        "name": options.load,
        "num_requests": len(load),
        "prompt_tokens": sum(each.prompt_tokens for each in load),
        "max_tokens": sum(each.max_tokens for each in load),
        "scale": options.scale,
        "seed": options.seed,
        "rate": options.rate,
    }

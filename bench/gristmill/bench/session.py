"""One call of `gristmill bench`: start Redis and engine, measure, write and show what came out."""

import asyncio
import os
import platform
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop

from gristmill.bench import loads, plots, table
from gristmill.bench.figures import rows
from gristmill.bench.measuring import Plan, measure
from gristmill.bench.observed import Observed
from gristmill.bench.records import Report, Run
from gristmill.bench.runs import Stage
from gristmill.bench.setups import POLICIES, setups
from gristmill.local.demo_model import demo_model
from gristmill.local.server import running_server
from gristmill.shared.cli import cache_folder, made_folder, redis_errors, say
from gristmill.shared.connection import connect
from gristmill.shared.install import install_hint
from gristmill.shared.settings import read_settings
from gristmill.worker.engine import Engine, EngineInfo, engine_from
from gristmill.worker.engine.vllm.gpu_use import gpu_meter
from gristmill.worker.settings import WorkerSettings

DEFAULT_REQUESTS = 256
DEMO_ARGUMENTS = ("--enforce-eager", "--max-num-seqs", "64", "--max-model-len", "2048")
TABLE_WIDTH = 240
RESULTS, MARKDOWN, CSV, PICTURE = "results.json", "table.md", "table.csv", "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for; `commands.py` has the meaning of each."""

    load: str
    requests: int | None
    scale: float
    seed: int
    rate: float | None
    policies: list[str]
    schedulings: list[str]
    sizes: list[int]
    batch_timeout_ms: float
    num_rounds: int
    num_warm_up: int
    out: Path
    redis_url: str | None
    vllm_url: str | None
    engine_argv: tuple[str, ...]
    command: str

    def plan(self) -> Plan:
        """Return what to run.

        Raises:
            SettingsError: There is no such load.
            InvalidRequest: A line of the file is no request.
        """
        return Plan(
            load=self._loader(),
            setups=setups(self.policies or [*POLICIES], self.schedulings, self.sizes),
            num_rounds=self.num_rounds,
            rate=self.rate,
            seed=self.seed,
            num_warm_up=self.num_warm_up,
        )

    def _loader(self) -> Any:
        if path := loads.file_of(self.load):
            load = loads.from_file(path, self.requests)
            return lambda _: load
        number = self.requests or DEFAULT_REQUESTS
        loads.named(self.load, 1)  # an unknown one is told before the engine starts
        return lambda round_number: loads.named(
            self.load, number, self.seed + round_number, self.scale
        )


def run_bench(options: Options, engine: Engine | None = None) -> Report:
    """Measure, then write and print the tables and draw the plots.

    Args:
        options: What to do.
        engine: Not started; the one that the options ask for unless given.

    Returns:
        What was measured.

    Raises:
        GristmillError: A setting is wrong, or the engine or Redis did not start; the message says what to do.
    """
    plan = options.plan()
    settings = read_settings(WorkerSettings, vllm_url=options.vllm_url)
    observed = Observed(engine or _engine(settings, options.engine_argv))
    made_folder(options.out)
    with ExitStack() as stack:
        url = options.redis_url or stack.enter_context(running_server())
        stack.enter_context(redis_errors(url))
        runs: list[Run] = []
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                report = runner.run(_measured(options, plan, observed, url, runs))
        except KeyboardInterrupt:
            kept = f"the runs that had ended are in {options.out / RESULTS}"
            say(f"  stopped; {kept if runs else 'no run had ended'}")
            raise
    present(report, options.out)
    return report


def present_again(results: Path) -> None:
    """Write, print and draw what an earlier bench has measured."""
    present(Report.load_from(results), results.parent)


def present(report: Report, folder: Path) -> None:
    """Write tables and plots of a report into a folder, and print the tables."""
    found = rows(report.runs)
    (folder / MARKDOWN).write_text(table.markdown(found))
    (folder / CSV).write_text(table.as_csv(found))
    _print(table.rich_tables(found))
    for run in report.runs:
        if run.first_error:
            say(
                f"  {run.setup.label}, round {run.round}: some failed, the first with {run.first_error}"
            )
    what = "tables, plots"
    try:
        plots.draw(report, folder / PICTURE)
    except ModuleNotFoundError as error:
        what = "tables"
        say(
            f"no plots: {error.name} is missing; here or elsewhere, {install_hint('bench')},"
            f" then: gristmill bench --plot {folder / RESULTS}"
        )
    say(f"{what} and all that was measured are in {folder}")


def _print(tables: list[Any]) -> None:
    """Print tables on stdout, as wide as they are where nobody's window is the limit."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    for each in tables:
        console.print(each)


def _engine(settings: WorkerSettings, argv: tuple[str, ...]) -> Engine:
    if not argv and not settings.vllm_url:
        argv = ("--model", str(demo_model(cache_folder())), *DEMO_ARGUMENTS)
    return engine_from(settings, argv)


async def _measured(
    options: Options, plan: Plan, engine: Observed, url: str, runs: list[Run]
) -> Report:
    """Measure on the engine from its start to its close; each run is in `runs` and saved once it has ended."""
    async with connect(url) as redis:
        await redis.ping()  # a wrong URL is told before minutes of a start
    server = engine.evidence().get("vllm_url")
    say(f"  waiting until {server}/health answers" if server else "  starting the engine")
    try:
        info = await engine.start()
        report = Report(_facts(options, engine, info), _load_facts(options, plan), runs)

        def keep(run: Run) -> None:
            if not report.runs:
                _clear(options.out)
            report.runs.append(run)
            report.save(options.out / RESULTS)

        gpu = gpu_meter(info.num_devices) if info.transport == "in_process" else None
        stage = Stage(
            engine=engine,
            info=info,
            redis_url=url,
            batch_timeout_ms=options.batch_timeout_ms,
            gpu=gpu,
        )
        await measure(stage, plan, keep)
    finally:
        await engine.close()
    return report


def _clear(folder: Path) -> None:
    """Remove what an earlier bench has drawn: its results are about to be overwritten."""
    for old in (MARKDOWN, CSV, f"{PICTURE}.png", f"{PICTURE}.svg"):
        (folder / old).unlink(missing_ok=True)


def _facts(options: Options, engine: Observed, info: EngineInfo) -> dict[str, Any]:
    return {
        "command": options.command,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "gristmill": version("gristmill"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "num_cores": os.cpu_count(),
        "engine": asdict(info),
        "engine_args": engine.evidence().get("engine_args", []),
        "batch_timeout_ms": options.batch_timeout_ms,
    }


def _load_facts(options: Options, plan: Plan) -> dict[str, Any]:
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

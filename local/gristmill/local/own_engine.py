"""Run an engine of this machine for the length of a block, for `map_table` and other calls from Python."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from gristmill.local.own_workers import check_packages, running_workers
from gristmill.local.run.own_queue import embedded_queue
from gristmill.producer.commands.run_workers import WatchWorkers
from gristmill.producer.window_size import window_of
from gristmill.shared.settings import QueueSettings


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """An engine that runs, with its Redis; `map_table` takes it as `engine`.

    Attributes:
        settings: Its Redis and queue, for a client too.
        window: Unfinished requests that keep all its engines busy.
        lost: Makes a coroutine that raises a GristmillError once the engine has ended.
    """

    settings: QueueSettings
    window: int
    lost: WatchWorkers


@contextmanager
def own_engine(model: str, *flags: str, devices: str | None = None) -> Iterator[OwnEngine]:
    """Start a Redis and workers on this machine, and stop them after the block.

    The block begins when the first engine is ready. Messages on stderr say how far it is. The thread that enters the
    block must live as long as the block: on Linux its end kills the Redis and the workers.

    Args:
        model: Model as `vllm serve` takes it.
        *flags: vLLM's own flags, such as `"--max-model-len", "4096"`.
        devices: NVIDIA devices to use, as a list such as `"0,1"`; None uses all, or the CPU.

    Raises:
        GristmillError: A package is missing, or a process has ended; the message has the end of its log.
        SettingsError: The devices or a setting of the environment do not fit.
    """
    check_packages("own_engine", "run", "install-run-cpu")
    from gristmill.local.run.engine_plan import EnginePlan

    plan = EnginePlan.read(["--model", model, *flags], None, devices)
    with (
        TemporaryDirectory(prefix="gristmill-engine-") as folder,
        embedded_queue() as queue,
        running_workers(
            queue.settings,
            plan.flags,
            Path(folder) / "worker.log",
            plan.environment,
            options=plan.options,
            server=queue.server,
        ) as lost,
    ):
        yield OwnEngine(queue.settings, window_of(plan.num_engines), lost)

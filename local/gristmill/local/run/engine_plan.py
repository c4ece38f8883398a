"""The engines of one `gristmill run`: their flags, their number, and the facts that a resume needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gristmill.producer.batches.submit_run import fingerprint
from gristmill.shared.disk_errors import disk_errors
from gristmill.shared.errors import SettingsError
from gristmill.shared.settings import read_settings
from gristmill.worker.engine.factory import check_engine_choice
from gristmill.worker.engine.vllm.arguments import check_path
from gristmill.worker.engine.vllm.model_flags import ModelFlags
from gristmill.worker.parent import ALL, planned_children
from gristmill.worker.settings import WorkerSettings

QUIET = {"GRISTMILL_LOG_LEVEL": "WARNING"}
"""The log of a run has no line for each request, unless the user sets the level: 10 million rows would take 4 GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """The engines of a run, checked but not started.

    Attributes:
        flags: vLLM's own flags.
        options: Options of `gristmill worker`.
        environment: Variables that the workers have in addition to those of this process.
        num_engines: Number of engines.
        facts: Values that a resume must have again.
    """

    flags: Sequence[str]
    options: Sequence[str]
    environment: Mapping[str, str]
    num_engines: int
    facts: Mapping[str, Any]

    @classmethod
    def read(cls, flags: Sequence[str], engines: str | None, devices: str | None) -> Self:
        """Check what the command line and the environment say of the engines.

        Args:
            flags: vLLM's own flags.
            engines: Number of engines for each group of devices; None leaves it to the settings.
            devices: Devices to use; None leaves it to the settings, which then mean all.

        Raises:
            SettingsError: There is no model, or the devices do not fit.
            InvalidRequest: The file of `--config` cannot be read.
        """
        settings = read_settings(WorkerSettings, engines=engines, devices=devices)
        options = ["--devices", settings.devices or ALL]
        if engines is not None:
            options += ["--engines", engines]
        check_engine_choice(settings, flags)
        planned = settings.model_copy(update={"devices": settings.devices or ALL})
        return cls(
            flags=flags,
            options=options,
            environment={} if "log_level" in settings.model_fields_set else QUIET,
            num_engines=len(planned_children(planned, flags)),
            facts=_facts(flags),
        )


def _facts(flags: Sequence[str]) -> dict[str, str]:
    model = ModelFlags.read(flags)
    if model.model is None and model.config is None:
        raise SettingsError("no model given; name one after --, such as: -- --model Qwen/Qwen3-8B")
    if model.model is not None:
        check_path(model.model)
    facts = {
        "model after --": model.model,
        "revision after --": model.revision,
        "digest of --config after --": _digest(model.config) if model.config else None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _digest(config: str) -> str:
    """Return a digest of a file of flags, which may name the model."""
    with disk_errors(config, "name another after --config"):
        return fingerprint(Path(config))[1]

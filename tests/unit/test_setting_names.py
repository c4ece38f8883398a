"""The known names of settings are those of the models, and a misspelt one is told."""

import os
import subprocess
import sys

import pytest
from pydantic_settings import BaseSettings
from structlog.testing import capture_logs

from gristmill.producer.gateway.settings import GatewaySettings
from gristmill.producer.steward.settings import StewardSettings
from gristmill.shared import setting_names
from gristmill.shared.setting_names import SETTINGS, warn_of_misspelt
from gristmill.shared.settings import QueueSettings, read_settings
from gristmill.worker.settings import WorkerSettings


def test_the_known_names_are_those_of_the_models() -> None:
    models: tuple[type[BaseSettings], ...] = (WorkerSettings, GatewaySettings, StewardSettings)
    assert {name.upper() for model in models for name in model.model_fields} == SETTINGS


@pytest.mark.usefixtures("plain_logging")
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MAX_DEPHT", "MAX_DEPTH"), ("LEASE", "LEASE_S"), ("RESULT_TTL", "RESULT_TTL_S"),
        ("REDIS", "REDIS_URL"), ("VLLM", "VLLM_URL"), ("BATCHSIZE", "BATCH_SIZE"), ("MAX_REQUESTS_BYTES", "MAX_REQUEST_BYTES"),
    ],
)  # fmt: skip
def test_a_misspelt_setting_is_told_once_with_the_nearest_one(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting_names._warn.cache_clear()
    monkeypatch.setenv(f"GRISTMILL_{name}", "1")
    with capture_logs() as events:
        read_settings(QueueSettings)
        read_settings(WorkerSettings)
    (event,) = events
    assert (event["name"], event["did_you_mean"]) == (f"GRISTMILL_{name}", f"GRISTMILL_{meant}")


@pytest.mark.usefixtures("plain_logging")
def test_other_names_are_not_told() -> None:
    """Kubernetes adds names for each service, and the settings of another process are no mistake."""
    services = ("HOST", "PORT", "PORT_HTTP")
    names = [f"GRISTMILL_GATEWAY_SERVICE_{name}" for name in services]
    names += [f"GRISTMILL_GATEWAY_PORT_8000_TCP{name}" for name in ("", "_ADDR", "_PORT", "_PROTO")]
    names += ["GRISTMILL_GATEWAY_HOST", "GRISTMILL_FUZZ_EXAMPLES", "MAX_DEPHT", "GRISTMILL_"]
    with capture_logs() as events:
        warn_of_misspelt(names)
    assert events == []


@pytest.mark.parametrize("command", ["tune --sample nowhere.jsonl -- --model m", "bench --load nowhere.jsonl"])  # fmt: skip
def test_commands_that_drop_warnings_tell_it_first(command: str) -> None:
    """Their log drops warnings while they measure; a wrong load ends them before an engine starts."""
    done = subprocess.run(
        [sys.executable, "-m", "gristmill.shared.cli", *command.split()],
        env=os.environ | {"GRISTMILL_MAX_DEPHT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "GRISTMILL_MAX_DEPHT is no setting and has no effect; did you mean GRISTMILL_MAX_DEPTH?" in done.stderr  # fmt: skip

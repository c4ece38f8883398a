"""Choose the engine of a worker: its process and bench call it once. `gristmill run` calls only the check."""

from collections.abc import Sequence

from gristmill.shared.errors import SettingsError
from gristmill.worker.engine.interface import Engine, RunLimits
from gristmill.worker.engine.remote import RemoteEngine
from gristmill.worker.engine.remote_facts import ASSUMED_NUM_SEQS
from gristmill.worker.engine.vllm.in_process import InProcessEngine
from gristmill.worker.flag_secrets import without_secrets
from gristmill.worker.settings import WorkerSettings


def engine_from(settings: WorkerSettings, argv: Sequence[str]) -> Engine:
    """Return the engine that the settings ask for, not started.

    Args:
        settings: Worker settings with the engine's URL, if any, and the limits of a request.
        argv: vLLM's arguments, which follow `--` on the command line.

    Raises:
        SettingsError: Both VLLM_URL and arguments are given, or neither.
    """
    check_engine_choice(settings, argv)
    limits = RunLimits(
        settings.max_request_s, settings.max_repeated_tokens, settings.max_result_bytes
    )
    if settings.vllm_url:
        return RemoteEngine(
            settings.vllm_url,
            settings.vllm_api_key.get_secret_value() if settings.vllm_api_key else None,
            health_path=settings.vllm_health_path,
            limits=limits,
            # A small MAX_IN_FLIGHT must not refuse a request with more sequences than that.
            max_num_seqs=settings.max_in_flight and max(settings.max_in_flight, ASSUMED_NUM_SEQS),
        )
    return InProcessEngine(argv, limits, settings.allowed_media_domains)


def check_engine_choice(settings: WorkerSettings, argv: Sequence[str]) -> None:
    """Check that the settings ask for one engine.

    Args:
        settings: Worker settings with the engine's URL, if any.
        argv: vLLM's arguments, which follow `--` on the command line.

    Raises:
        SettingsError: Both VLLM_URL and arguments are given, or neither.
    """
    if settings.vllm_url and argv:
        raise SettingsError(
            f"VLLM_URL is set, so the model runs there, but arguments for an engine in this "
            f"process are given too ({' '.join(without_secrets(argv))}); remove one of them"
        )
    if not (settings.vllm_url or argv):
        raise SettingsError(
            "no engine: give vLLM's arguments after --, such as -- --model Qwen/Qwen3-8B, or set VLLM_URL"
        )

"""Which engine a worker gets; called once by the wiring."""

from collections.abc import Collection, Sequence

from gristmill.shared.errors import SettingsError
from gristmill.worker.engine.arguments import without_secrets
from gristmill.worker.engine.in_process import InProcessEngine
from gristmill.worker.engine.interface import Engine, RunLimits
from gristmill.worker.engine.remote import RemoteEngine


def engine_from(
    vllm_url: str | None,
    argv: Sequence[str],
    limits: RunLimits,
    *,
    api_key: str | None = None,
    media_domains: Collection[str] = (),
) -> Engine:
    """Return the engine that the settings ask for, not started.

    Args:
        vllm_url: The base URL of a running server (VLLM_URL), or None for one in this process.
        argv: vLLM's arguments, what follows `--` on the command line.
        limits: When a request is cut.
        api_key: Sent to the server as a bearer token.
        media_domains: Hosts from which an engine in this process may fetch media; a server has its own rule.

    Raises:
        SettingsError: Both are given, or neither.
    """
    if vllm_url and argv:
        raise SettingsError(
            f"VLLM_URL is set, so the model runs there, but arguments for an engine in this "
            f"process are given too ({' '.join(without_secrets(argv))}); take one of them away"
        )
    if vllm_url:
        return RemoteEngine(vllm_url, api_key, limits=limits)
    if not argv:
        raise SettingsError(
            "no engine: give vLLM's arguments after --, such as --model, or set VLLM_URL"
        )
    return InProcessEngine(argv, limits, media_domains)

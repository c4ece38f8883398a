"""Know the names of all settings, and warn of an environment variable that misspells one."""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache

from gristmill.shared.log import warn

PREFIX = "GRISTMILL_"

SETTINGS = frozenset((
    "AGEING_S", "ALLOWED_MEDIA_DOMAINS", "BACKOFF_BASE_S", "BACKOFF_MAX_S", "BATCH_POLICY",
    "BATCH_SIZE", "BATCH_TIMEOUT_MS", "BATCH_TTL_S", "BATCH_WINDOW_BYTES",
    "BATCH_WINDOW_REQUESTS", "BEAT_S", "CHECK_BODIES", "CHECK_MODELS", "DEAD_LETTER_TTL_S", "DEVICES", "DEVICE_HOUR_PRICE", "DRAIN_TIMEOUT_S",
    "ENGINES", "FILE_TTL_S", "FIRST_REQUEST_TIMEOUT_S", "GATEWAY_ALLOW_ANONYMOUS", "GATEWAY_HOST", "GATEWAY_LIVE_TIMEOUT_S", "GATEWAY_MAX_WAIT_S",
    "GATEWAY_MODELS", "GATEWAY_PORT", "GATEWAY_QUEUES", "HEALTH_HOST", "HEALTH_PORT", "HIGH_SHARE", "LEASE_S", "LOG_LEVEL", "MAX_BATCH_REQUESTS",
    "MAX_BYTES", "MAX_CLAIM_TOKENS", "MAX_DEPTH", "MAX_FILE_BYTES", "MAX_IN_FLIGHT",
    "MAX_IN_FLIGHT_BYTES", "MAX_REPEATED_TOKENS", "MAX_REQUEST_BYTES", "MAX_REQUEST_S", "MAX_RESULT_BYTES", "MAX_STREAM_BYTES",
    "MIN_REPLICAS", "POD_NAME", "POLL_INTERVAL_S", "QUEUE", "REDIS_URL", "REFILL", "RESULT_TTL_S", "RQ_REDIS_URL",
    "SCHEDULING", "SOCKET_TIMEOUT_S", "STALL_TIMEOUT_S", "START_TIMEOUT_S", "STORAGE_URL", "STREAM_TTL_S",
    "SWEEP_INTERVAL_S", "UNTIL_EMPTY", "VLLM_API_KEY", "VLLM_HEALTH_PATH", "VLLM_URL",
    "WEBHOOK_ALLOWED_HOSTS", "WEBHOOK_TIMEOUT_S",
))  # fmt: skip
"""Settings of all processes, without the prefix: a process whose environment has those of another is not warned.
A test compares them with the models, which this portion may not import."""

NEAR = 0.8
"""Similarity from which a name counts as misspelt. Kubernetes adds names such as GRISTMILL_GATEWAY_SERVICE_HOST,
which are below it."""


def warn_of_misspelt(names: Iterable[str]) -> None:
    """Warn of each variable that looks like a misspelt setting, once in a process."""
    for name in sorted(names):
        if name.startswith(PREFIX) and (meant := _meant(name.removeprefix(PREFIX))):
            _warn(name, meant)


def _meant(name: str) -> str | None:
    """Return the setting that a wrong name probably meant, or None; names are without the prefix."""
    if name in SETTINGS:
        return None
    without_unit = (known for known in sorted(SETTINGS, key=len) if known.startswith(f"{name}_"))
    return next(iter(get_close_matches(name, SETTINGS, n=1, cutoff=NEAR)), next(without_unit, None))


@cache
def _warn(name: str, meant: str) -> None:
    message = f"{name} is no setting and has no effect; did you mean {PREFIX}{meant}?"
    warn("setting.misspelt", message, name=name, did_you_mean=PREFIX + meant)

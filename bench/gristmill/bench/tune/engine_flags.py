"""vLLM's flags for the tuned settings."""

from collections.abc import Sequence
from typing import Any

from gristmill.bench.tune.candidates import Setting

SEQUENCES, TOKENS = "--max-num-seqs", "--max-num-batched-tokens"


def setting_of(info: dict[str, Any]) -> Setting:
    """Return the setting in an engine's `EngineInfo`."""
    return Setting(info["max_num_seqs"], info["max_num_batched_tokens"])


def flags(setting: Setting | None) -> list[str]:
    """Return vLLM's flags for a setting. If vLLM gets a flag twice, the last one counts."""
    if setting is None:
        return []
    return [SEQUENCES, str(setting.max_num_seqs), TOKENS, str(setting.max_num_batched_tokens)]


def without_flags(argv: Sequence[str]) -> list[str]:
    """Return the user's flags without those that are tuned."""
    kept: list[str] = []
    is_value = False
    for word in argv:
        name, has_value, _ = word.partition("=")
        is_tuned = name.replace("_", "-") in (SEQUENCES, TOKENS)
        if not is_tuned and not is_value:
            kept.append(word)
        is_value = is_tuned and not has_value
    return kept

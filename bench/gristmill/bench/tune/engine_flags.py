"""vLLM's flags for the tuned settings."""

from collections.abc import Sequence
from typing import Any

from gristmill.bench.tune.candidates import Setting

SEQUENCES, TOKENS = "--max-num-seqs", "--max-num-batched-tokens"
GRAPHS = "--max-cudagraph-capture-size"

GRAPH_FLAGS = (
    *(GRAPHS, "--cudagraph-capture-sizes", "--enforce-eager", "--optimization-level"),
    *("--compilation-config", "-cc", "-O"),
)
"""Beginnings of the flags with which the user decides about graphs: `-O3`, `-cc.cudagraph_mode`."""


def setting_of(info: dict[str, Any], slots: int = 1) -> Setting:
    """Return the setting in an engine's `EngineInfo`."""
    return Setting(info["max_num_seqs"], info["max_num_batched_tokens"], slots=slots)


def flags(setting: Setting | None) -> list[str]:
    """Return vLLM's flags for a setting. If vLLM gets a flag twice, the last one counts."""
    if setting is None:
        return []
    graphs = [GRAPHS, str(setting.graph_size)] if setting.graph_size else []
    sequences, tokens = setting.max_num_seqs, setting.max_num_batched_tokens
    return [SEQUENCES, str(sequences), TOKENS, str(tokens), *graphs]


def without_flags(argv: Sequence[str], names: Sequence[str] = (SEQUENCES, TOKENS)) -> list[str]:
    """Return the user's flags without those that are tuned, or without other flags with a value."""
    kept: list[str] = []
    is_value = False
    for word in argv:
        name, has_value, _ = word.partition("=")
        is_tuned = name.replace("_", "-") in names
        if not is_tuned and not is_value:
            kept.append(word)
        is_value = is_tuned and not has_value
    return kept


def has_any(argv: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether one of these flags is given."""
    return any(_name(word) in names for word in argv)


def decides_graphs(argv: Sequence[str]) -> bool:
    """Return whether the user's flags say something about graphs, so that the search does not."""
    return any(_name(word).startswith(GRAPH_FLAGS) for word in argv)


def value_of(argv: Sequence[str], name: str) -> str:
    """Return the last value of a flag; empty if it is not given."""
    value = ""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if _name(word) == name:
            value = word.partition("=")[2] if "=" in word else following
    return value


def model_of(argv: Sequence[str]) -> str:
    """Return the model: the value of `--model`, or the first word."""
    return value_of(argv, "--model") or (argv[0] if argv and argv[0][:1] != "-" else "")


def _name(word: str) -> str:
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("-") else ""

"""Estimate a model's memory before any engine starts, to divide the device.

The estimate decides only how many engines to begin with. If the KV cache of the first engine turns
out too small, the device is divided into fewer parts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from gristmill.bench.loads import LoadRequest

GIB = 2**30

OVERHEAD_BYTES = 3 * GIB
"""Memory of an engine beside weights and KV cache: its context, its graphs, a step's activations."""

BYTES_PER_VALUE = 2
"""Size of a weight and of a cached value: bfloat16."""

MANY_SEQS = 1024
"""Sequences of one engine beyond which a card gains little."""

ENOUGH_CACHE = 0.9
"""Share of the wanted KV cache with which a share of the device is large enough."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """The memory that a model takes.

    Attributes:
        weights_bytes: Bytes of its weights.
        token_bytes: Bytes of one token in the KV cache.
    """

    weights_bytes: int
    token_bytes: int


def wanted_tokens(load: Sequence[LoadRequest], max_num_seqs: int) -> int:
    """Return the tokens that the KV cache of an engine should hold for a load.

    Few sequences should still fit when the search doubles them.
    """
    num_seqs = max(max_num_seqs, min(2 * max_num_seqs, MANY_SEQS))
    return round(num_seqs * fmean(each.prompt_tokens + each.max_tokens for each in load))


def num_shares(model: ModelMemory | None, memory_bytes: float, tokens: int, most: int) -> int:
    """Return the most equal parts of a device that each hold the model and its KV cache.

    Args:
        model: Memory of the model; None if unknown, which gives two parts at most.
        memory_bytes: Memory of the device for all engines.
        tokens: Tokens that the KV cache of each engine must hold.
        most: Most parts.
    """
    if model is None:
        return min(2, most)
    wanted = model.weights_bytes + OVERHEAD_BYTES + ENOUGH_CACHE * tokens * model.token_bytes
    return max(1, min(most, int(memory_bytes / wanted)))


def read_model_memory(model: str) -> ModelMemory | None:
    """Return a model's memory by its files on this machine; None if they do not say.

    Args:
        model: Folder of the model, or its name on a hub.
    """
    folder = Path(model) if Path(model).is_dir() else _cached(model)
    if folder is None:
        return None
    try:
        config = json.loads((folder / "config.json").read_text())
        shape = config.get("text_config", config)
        token_bytes = 2 * BYTES_PER_VALUE * shape["num_hidden_layers"] * _kv_width(shape)
        return ModelMemory(_files_bytes(folder) or _weights_bytes(shape), token_bytes)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _cached(model: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(model, "config.json")
    except ValueError:  # no name of a hub
        return None
    return Path(found).parent if isinstance(found, str) else None


def _files_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _head_size(shape: Mapping[str, Any]) -> int:
    return int(shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"])


def _kv_width(shape: Mapping[str, Any]) -> int:
    heads = shape.get("num_key_value_heads") or shape["num_attention_heads"]
    return int(heads) * _head_size(shape)


def _weights_bytes(shape: Mapping[str, Any]) -> int:
    """Return the bytes of a decoder's weights by the numbers in its configuration."""
    hidden = shape["hidden_size"]
    experts = shape.get("num_local_experts") or shape.get("num_experts") or 1
    inner = shape.get("moe_intermediate_size") or shape["intermediate_size"]
    attention = 2 * hidden * (shape["num_attention_heads"] * _head_size(shape) + _kv_width(shape))
    layer = attention + 3 * hidden * inner * experts
    tables = 1 if shape.get("tie_word_embeddings") else 2
    values = shape["num_hidden_layers"] * layer + tables * hidden * shape["vocab_size"]
    return int(BYTES_PER_VALUE * values)

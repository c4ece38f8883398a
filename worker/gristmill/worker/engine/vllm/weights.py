"""Tell the weights of a model cheaply: by the commit of a hub, or by a digest of what lists the tensors.

`building.py` calls this module once a start of the engine. It reads no tensors. The digest of a folder therefore tells
models with other tensors, types or shapes apart, but not two trainings of one model in the same files.
"""

import re
from hashlib import sha256
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
"""Name of the file that says which of several files has which tensor."""

NUM_DIGITS = 12
"""Hex digits of a digest."""

LENGTH_BYTES = 8
"""Bytes at the start of a safetensors file with the length of its header, little-endian."""

MAX_HEADER_BYTES = 100_000_000
"""Largest header that the safetensors library accepts."""

CONFIGS = ("config.json", "params.json")
"""Files of which vLLM fetches one at least, before the weights."""

_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})(?=/|$)")


def describe_weights(model_config: Any, load_config: Any) -> str:
    """Return what tells the weights that vLLM loaded; "" if that is not known.

    Args:
        model_config: vLLM's `ModelConfig`.
        load_config: vLLM's `LoadConfig`. Its format `dummy` means random weights.
    """
    if load_config.load_format == "dummy":
        return ""
    try:
        return weights_of(model_config.model, model_config.revision)
    except (OSError, ValueError):  # this is a remark in results, so it must not stop a start
        return ""


def weights_of(model: str, revision: str | None = None) -> str:
    """Return `commit:` and the commit of a hub's snapshot, or `sha256:` and the digest of a folder's index.

    Args:
        model: A folder, or the name of a model in the hub.
        revision: A branch, tag or commit of the hub; None for the default branch.

    Returns:
        The description; "" for a folder without safetensors, and for what the cache of the hub does not have.

    Raises:
        OSError: A file cannot be read.
        ValueError: The model is neither a folder nor a name of the hub, or a file is no safetensors file.
    """
    folder = Path(model)
    if not folder.is_dir():
        return _commit_in(_cached(model, revision))
    return _commit_in(folder.resolve().as_posix()) or _digest_of(folder)


def _commit_in(path: str) -> str:
    found = _SNAPSHOT.search(path)
    return f"commit:{found[1]}" if found else ""


def _cached(model: str, revision: str | None) -> str:
    """Return the path of the model's configuration in the hub's cache; "" if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    paths = (try_to_load_from_cache(model, name, revision=revision) for name in CONFIGS)
    return next((path for path in paths if isinstance(path, str)), "")


def _digest_of(folder: Path) -> str:
    index = folder / INDEX
    if index.is_file():
        listing = index.read_bytes()
    elif len(files := list(folder.glob("*.safetensors"))) == 1:
        listing = _header_of(files[0])
    else:
        return ""
    return f"sha256:{sha256(listing).hexdigest()[:NUM_DIGITS]}"


def _header_of(path: Path) -> bytes:
    """Return the JSON header of a safetensors file, which lists its tensors."""
    with path.open("rb") as file:
        num_bytes = int.from_bytes(file.read(LENGTH_BYTES), "little")
        header = file.read(num_bytes) if num_bytes <= MAX_HEADER_BYTES else b""
    if not header.startswith(b"{") or len(header) < num_bytes:
        raise ValueError(f"{path} does not begin with a header of safetensors")
    return header

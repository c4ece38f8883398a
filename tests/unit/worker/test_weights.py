"""Test that weights are told by a hub's commit or by a digest of what lists the tensors."""

import json
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gristmill.worker.engine.vllm.weights import describe_weights, weights_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HEADER = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'


def digest(listing: bytes) -> str:
    return f"sha256:{sha256(listing).hexdigest()[:12]}"


def safetensors(folder: Path, name: str, header: bytes = HEADER, data: bytes = b"\0" * 4) -> None:
    (folder / name).write_bytes(len(header).to_bytes(8, "little") + header + data)


def snapshot(cache: Path) -> Path:
    """Make the hub's cache of one model as huggingface_hub lays it out."""
    model = cache / "models--org--name"
    folder = model / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    return folder


def test_several_files_are_told_by_their_index(tmp_path: Path) -> None:
    listing = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}).encode()
    (tmp_path / "model.safetensors.index.json").write_bytes(listing)
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        safetensors(tmp_path, name)
    assert weights_of(str(tmp_path)) == digest(listing)


def test_a_single_file_is_told_by_its_header_alone(tmp_path: Path) -> None:
    safetensors(tmp_path, "model.safetensors", data=b"one")
    assert weights_of(str(tmp_path)) == digest(HEADER)
    safetensors(tmp_path, "model.safetensors", data=b"other")
    assert weights_of(str(tmp_path)) == digest(HEADER)
    safetensors(tmp_path, "model.safetensors", HEADER.replace(b"F32", b"I32"))
    assert weights_of(str(tmp_path)) != digest(HEADER)


def test_a_folder_without_a_listing_tells_nothing(tmp_path: Path) -> None:
    assert weights_of(str(tmp_path)) == ""
    for name in ("one.safetensors", "two.safetensors"):
        safetensors(tmp_path, name)
    assert weights_of(str(tmp_path)) == ""


@pytest.mark.parametrize("inside", ["", "original"])
def test_the_snapshot_of_a_hub_is_told_by_its_commit(tmp_path: Path, inside: str) -> None:
    folder = snapshot(tmp_path)
    safetensors(folder, "model.safetensors")
    (folder / "original").mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder / inside)
    assert weights_of(str(folder / inside)) == weights_of(str(link)) == f"commit:{COMMIT}"


@pytest.mark.parametrize(
    ("model", "revision", "weights"),
    [
        ("org/name", None, f"commit:{COMMIT}"),
        ("org/name", "main", f"commit:{COMMIT}"),
        ("org/name", COMMIT, f"commit:{COMMIT}"),
        ("org/name", "v2", ""),
        ("org/other", None, ""),
    ],
)
def test_a_name_of_the_hub_is_told_by_the_commit_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, revision: str | None, weights: str
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot(tmp_path)
    assert weights_of(model, revision) == weights


def described(model: Path | str, load_format: str = "auto") -> str:
    config: Any = SimpleNamespace(model=str(model), revision=None)
    return describe_weights(config, SimpleNamespace(load_format=load_format))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        (99).to_bytes(8, "little") + HEADER,
        (2**60).to_bytes(8, "little") + HEADER,
        (4).to_bytes(8, "little") + b"text",
    ],
)
def test_a_damaged_file_tells_nothing_and_stops_no_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="header of safetensors"):
        weights_of(str(tmp_path))
    assert described(tmp_path) == ""


def test_random_weights_are_not_those_of_the_folder(tmp_path: Path) -> None:
    safetensors(tmp_path, "model.safetensors")
    assert described(tmp_path) == digest(HEADER)
    assert described(tmp_path, "dummy") == ""


def test_a_model_that_is_no_folder_and_no_name_tells_nothing() -> None:
    pytest.importorskip("huggingface_hub")
    assert described("/no/such/folder/model.gguf") == ""

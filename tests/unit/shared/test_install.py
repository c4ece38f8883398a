"""The install line in an error fits how pip says that this Gristmill was installed."""

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.shared.install import TORCH_INDEX, cpu_install_hint, install_hint, missing_module

METADATA = "\n".join(
    (
        "Metadata-Version: 2.4",
        "Name: gristmill",
        "Version: 7.1",
        "Requires-Dist: aiohttp>=3.13; extra == 'bench'",
        "Requires-Dist: matplotlib>=3.10; extra == 'bench'",
        "Requires-Dist: aiohttp>=3.13; extra == 'worker'",
    )
)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the metadata of a Gristmill that stands first on the path."""
    folder = tmp_path / "packages" / "gristmill-7.1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(folder.parent)
    return folder


def note_origin(installed: Path, **record: Any) -> None:
    (installed / "direct_url.json").write_text(json.dumps(record))


def test_a_checkout_is_named_by_its_path(installed: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "my checkout"
    checkout.mkdir()
    note_origin(installed, url=checkout.as_uri(), dir_info={})
    assert install_hint("gpu", "run") == f"run: pip install '{checkout}[gpu,run]'"
    assert cpu_install_hint("demo", "demo") == f"run: make -C '{checkout}' demo"
    note_origin(installed, url=checkout.as_uri(), dir_info={"editable": True})
    assert install_hint("s3") == f"run: pip install -e '{checkout}[s3]'"


def test_a_wheel_is_named_by_its_url(installed: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "gristmill-7.1-py3-none-any.whl"
    wheel.touch()
    note_origin(installed, url=wheel.as_uri(), archive_info={})
    assert install_hint("s3") == f"run: pip install 'gristmill[s3] @ {wheel.as_uri()}'"
    note_origin(installed, url="https://host/g.whl", archive_info={})
    assert install_hint("s3") == "run: pip install 'gristmill[s3] @ https://host/g.whl'"
    assert cpu_install_hint("demo", "demo") == (
        f"run: pip install --extra-index-url {TORCH_INDEX} 'gristmill[cpu,demo] @ https://host/g.whl'"
        " && pip uninstall --yes torchvision torchaudio torchcodec triton"
    )


def test_a_commit_is_named_with_its_version_control_system(installed: Path) -> None:
    note_origin(installed, url="https://host/g.git", vcs_info={"vcs": "git", "commit_id": "c0ffee"})
    assert install_hint("s3") == "run: pip install 'gristmill[s3] @ git+https://host/g.git@c0ffee'"


@pytest.mark.usefixtures("installed")
def test_without_a_record_the_index_had_this_version() -> None:
    assert install_hint("s3") == "run: pip install 'gristmill[s3]==7.1'"


def test_a_source_that_is_gone_needs_a_checkout(installed: Path, tmp_path: Path) -> None:
    note_origin(installed, url=(tmp_path / "gone").as_uri(), dir_info={})
    hint = "in a checkout of Gristmill, run: pip install '.[s3]'"
    assert install_hint("s3") == hint
    note_origin(installed, url=(tmp_path / "gone.whl").as_uri(), archive_info={})
    assert install_hint("s3") == hint


@pytest.mark.usefixtures("installed")
def test_a_missing_package_is_in_the_extra_of_the_command_or_the_smallest() -> None:
    error = ModuleNotFoundError("No module named 'aiohttp'", name="aiohttp.web")
    assert missing_module(error) == "needs aiohttp; run: pip install 'gristmill[worker]==7.1'"
    assert (
        missing_module(error, "bench") == "needs aiohttp; run: pip install 'gristmill[bench]==7.1'"
    )
    own = ModuleNotFoundError("No module named 'click'", name="click")
    assert (
        missing_module(own)
        == "No module named 'click'; run: pip install --force-reinstall gristmill==7.1"
    )

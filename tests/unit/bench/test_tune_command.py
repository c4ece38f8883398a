"""What `gristmill tune` says before any engine starts."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gristmill.bench.tune.commands import tune
from gristmill.shared.errors import InvalidRequest, SettingsError


def words(folder: Path, *options: str) -> list[str]:
    return ["--out", str(folder / "tune"), *options, "--", "--model", "m"]


def called(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(tune, words(folder, *options))


def test_sample_must_be_given(tmp_path: Path) -> None:
    result = called(tmp_path)
    assert result.exit_code == 2
    assert "Missing option '--sample'" in result.output


def test_flags_must_be_given() -> None:
    result = CliRunner().invoke(tune, ["--sample", "lognormal"])
    assert result.exit_code == 2
    assert "Missing argument" in result.output


def test_sample_that_is_neither_file_nor_name_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown load 'nowhere\.jsonl'; use one of lognormal"):
        tune.main(words(tmp_path, "--sample", "nowhere.jsonl"), standalone_mode=False)
    assert not (tmp_path / "tune").exists()


def test_line_that_cannot_be_read_is_told_with_its_number(tmp_path: Path) -> None:
    sample = tmp_path / "my.jsonl"
    sample.write_text('{"prompt": "a"}\nnonsense\n')
    with pytest.raises(InvalidRequest, match=r"my\.jsonl, line 2: "):
        tune.main(words(tmp_path, "--sample", str(sample)), standalone_mode=False)
    assert not (tmp_path / "tune").exists()


@pytest.mark.parametrize("budget", ["30", "0m", "-5m", "1.5.2h", "m", "20 minutes"])
def test_budget_that_is_no_time_is_told(budget: str, tmp_path: Path) -> None:
    result = called(tmp_path, "--sample", "lognormal", f"--budget={budget}")
    assert result.exit_code == 2
    assert "such as 90s or 30m" in result.output

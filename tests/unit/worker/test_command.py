"""Test the errors of commands that take vLLM's flags, such as a flag before `--`."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gristmill.shared.cli import gristmill
from gristmill.shared.errors import SettingsError


def called(*words: str) -> Result:
    return CliRunner().invoke(gristmill, words, prog_name="gristmill")


@pytest.mark.parametrize("command", ["worker", "bench", "tune"])
def test_flags_of_vllm_before_the_dashes_are_shown_in_their_place(command: str) -> None:
    ended = called(command, "--model", "some/model", "--api-key=secret")
    assert ended.exit_code == 2
    assert f"--model is no option of gristmill {command}" in ended.output
    assert f": gristmill {command} -- --model some/model '--api-key=***'" in ended.output


def test_options_of_the_command_stay_before_the_dashes() -> None:
    ended = called("bench", "--seed", "1", "--model", "m", "--requests", "4")
    assert ": gristmill bench ... -- --model m" in ended.output


@pytest.mark.parametrize("option", ["--policies", "--scheduling", "--sizes"])
def test_list_that_names_nothing_is_told_before_the_engine_starts(option: str) -> None:
    ended = called("bench", option, ",")
    assert ended.exit_code == 2
    assert "the list is empty" in ended.output


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("command", "option"),
    [("bench", "--scale"), ("bench", "--rate"), ("bench", "--batch-timeout-ms"), ("tune", "--max-p95-s")],
)  # fmt: skip
def test_number_that_nothing_can_be_made_of_is_refused(
    command: str, option: str, number: str
) -> None:
    ended = called(command, option, number)
    assert ended.exit_code == 2
    assert f"Invalid value for '{option}'" in ended.output


def test_worker_without_an_engine_is_told_in_words() -> None:
    with pytest.raises(SettingsError, match="no engine: give vLLM's arguments after --"):
        gristmill.main(["worker"], standalone_mode=False)


@pytest.mark.parametrize("command", ["bench", "tune"])
def test_folder_that_cannot_be_made_is_told_by_name(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sample = ["--sample", "lognormal"] if command == "tune" else []
    words = [command, *sample, "--out", str(tmp_path / "file" / "x"), "--", "--model", "m"]
    with pytest.raises(SettingsError, match=r"cannot write to .*file/x"):
        gristmill.main(words, standalone_mode=False)

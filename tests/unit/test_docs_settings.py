"""docs/settings.md is what the settings models say, and its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

from pydantic_settings import BaseSettings

from gristmill.producer.gateway.settings import GatewaySettings
from gristmill.producer.steward.settings import StewardSettings
from gristmill.worker.settings import WorkerSettings

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "settings.md").read_text()


def make_settings(*arguments: str, script: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=False
    )


def test_the_page_is_what_the_models_say() -> None:
    checked = make_settings("--check", script=DOCS / "make_settings.py")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_stale_page_is_told_with_the_remedy(tmp_path: Path) -> None:
    script = tmp_path / "make_settings.py"
    script.write_text((DOCS / "make_settings.py").read_text())
    (tmp_path / "settings.md").write_text(PAGE.replace("default", "defualt"))
    checked = make_settings("--check", script=script)
    assert checked.returncode == 1
    assert "docs/settings.md is stale" in checked.stderr
    assert "make docs" in checked.stderr
    assert make_settings(script=script).returncode == 0
    assert (tmp_path / "settings.md").read_text() == PAGE


def test_every_setting_is_on_the_page_and_nothing_else() -> None:
    told = {
        name.removeprefix("GRISTMILL_").lower() for name in re.findall(r"\*\*`([A-Z_]+)`", PAGE)
    }
    models: tuple[type[BaseSettings], ...] = (WorkerSettings, GatewaySettings, StewardSettings)
    assert told == {name for model in models for name in model.model_fields}


def test_every_setting_says_what_it_means() -> None:
    models: tuple[type[BaseSettings], ...] = (WorkerSettings, GatewaySettings, StewardSettings)
    fields = [item for model in models for item in model.model_fields.items()]
    assert [name for name, field in fields if not field.description] == []
    unset = [field.description or "" for _, field in fields if field.default is None]
    assert all("unset" in words.lower() for words in unset)


def test_lines_are_short_and_links_lead_somewhere() -> None:
    assert max(map(len, PAGE.splitlines())) <= 120
    links = re.findall(r"\]\(([\w.-]*)(?:#([\w-]+))?\)", PAGE)
    assert links
    for name, anchor in links:
        text = (DOCS / (name or "settings.md")).read_text()
        headings = {
            re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("#")
        }
        assert not anchor or anchor in headings, f"{name}#{anchor}"

"""The form of the documents: how long README is, how long lines are, where links lead, what they name."""

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        REPOSITORY / "README.md",
        REPOSITORY / "CONTRIBUTING.md",
        *(REPOSITORY / "docs").rglob("*.md"),
    ]
)
MAX_README_WORDS = 950
MAX_LINE_CHARS = 120


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


def test_readme_names_the_version_of_the_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    major, minor, *_ = project["version"].split(".")
    assert f"Version {major}.{minor}" in (REPOSITORY / "README.md").read_text()


def test_readme_stays_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().split()) <= MAX_README_WORDS


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_stay_short(page: Path) -> None:
    lines = enumerate(page.read_text().splitlines(), 1)
    assert [number for number, line in lines if len(line) > MAX_LINE_CHARS] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_every_page_is_in_the_index() -> None:
    index = (REPOSITORY / "docs" / "README.md").read_text()
    pages = {page.name for page in (REPOSITORY / "docs").glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"({page}" not in index} == set()


def test_every_test_that_a_page_names_exists() -> None:
    paths = list((REPOSITORY / "tests").rglob("*.py"))
    source = "".join(path.read_text() for path in paths)
    for page in PAGES:
        for name, is_file in re.findall(r"\b(test_\w+)(\.py)?\b", page.read_text()):
            if is_file:
                assert any(path.name == f"{name}.py" for path in paths), f"{page}: {name}.py"
            else:
                assert f"def {name}" in source, f"{page}: {name}"


def test_the_map_of_the_code_names_every_module_and_no_other() -> None:
    """The packages with a map of their own, bench, and what only the demo has, need not be in it."""
    named = set(
        re.findall(r"\b(\w+)\.(?:py|lua)\b", (REPOSITORY / "docs/architecture.md").read_text())
    )
    folders = ("shared/gristmill", "worker/gristmill", "producer/gristmill", "local/gristmill")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.*")]
    modules = {path for path in files if path.suffix == ".py" and path.stem != "__init__"}
    mapped = {"batches", "gateway", "steward", "tables", "forecast", "demo"}
    ours = {path.stem for path in modules if not mapped & set(path.parts)} - {"demo_model"}
    assert ours - named == set()
    tests = {path.stem for path in (REPOSITORY / "tests").rglob("*.py")}
    known = {path.stem for path in files if path.suffix in {".py", ".lua"}}
    assert named - known - tests == set()

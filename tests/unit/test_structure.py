"""The structure of each portion: no circle of modules or folders, and one name for one module."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PORTIONS = ("bench", "local", "producer", "shared", "worker")
SHARED_NAMES = {"commands", "settings", "__main__"}
"""Module names that a portion may use in several folders."""

Graph = Mapping[str, set[str]]
"""Each node, and the nodes that it imports."""


def modules(portion: str) -> dict[str, Path]:
    """Return the file of each module; a package stands for its `__init__`."""
    root = REPOSITORY / portion
    paths = sorted((root / "gristmill").rglob("*.py"))
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in paths]
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


def module_imports(portion: str, *, is_deep: bool) -> Graph:
    """Return which modules of the portion each module imports.

    Args:
        portion: Name of its folder.
        is_deep: Whether imports within functions count too.
    """
    files = modules(portion)
    graph = {}
    for name, path in files.items():
        tree = ast.parse(path.read_text())
        nodes = ast.walk(tree) if is_deep else top_level(tree.body)
        graph[name] = set(imported(nodes, set(files))) - {name}
    return graph


def imported(nodes: Iterable[ast.AST], known: set[str]) -> Iterator[str]:
    """Yield the known modules that import statements name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                if submodule in known:
                    yield submodule
                elif node.module in known:
                    yield node.module


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those within `if` and `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from top_level(node.body + node.orelse)


def folder_imports(portion: str) -> Graph:
    """Return which folders the modules of each folder import, within functions too.

    A folder and a folder within it count as one place: a subfolder may use the settings above it.
    """
    files = modules(portion)
    folders = {
        name: name if path.name == "__init__.py" else name.rpartition(".")[0]
        for name, path in files.items()
    }
    graph: dict[str, set[str]] = {folder: set() for folder in folders.values()}
    for name, found in module_imports(portion, is_deep=True).items():
        folder = folders[name]
        graph[folder] |= {folders[each] for each in found if not is_within(folder, folders[each])}
    return graph


def is_within(folder: str, other: str) -> bool:
    """Return whether one of two folders is or holds the other."""
    return f"{folder}.".startswith(f"{other}.") or f"{other}.".startswith(f"{folder}.")


def first_circle(graph: Graph) -> list[str]:
    """Return a circle of imports, its first node repeated at its end; [] if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]  # graphlib names the imported one first
    return []


def test_circles_are_found() -> None:
    assert first_circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    circle = first_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert circle[0] == circle[-1]
    assert "".join(circle[:2]) in "abca"


def test_folder_and_its_subfolder_are_one_place() -> None:
    assert is_within("gristmill.worker", "gristmill.worker.engine")
    assert is_within("gristmill.worker.engine", "gristmill.worker")
    assert not is_within("gristmill.producer.demo", "gristmill.producer.commands")
    assert not is_within("gristmill.worker.engine", "gristmill.worker.engines")


@pytest.mark.parametrize("portion", PORTIONS)
def test_modules_of_a_portion_form_no_circle(portion: str) -> None:
    assert first_circle(module_imports(portion, is_deep=False)) == []


@pytest.mark.parametrize("portion", PORTIONS)
def test_folders_of_a_portion_form_no_circle(portion: str) -> None:
    assert first_circle(folder_imports(portion)) == []


@pytest.mark.parametrize("portion", PORTIONS)
def test_no_module_name_is_used_twice_in_a_portion(portion: str) -> None:
    names = Counter(name.rpartition(".")[2] for name in modules(portion))
    assert {name for name, number in names.items() if number > 1} - SHARED_NAMES == set()

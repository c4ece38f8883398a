"""Each verb's script has what it calls and no more, by a look at the names in its Lua."""

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from gristmill.shared.scripts import INCLUDES, VERBS, lua_text, script_source

ROOT = Path(__file__).resolve().parents[3]

LUA = files("gristmill.shared") / "lua"
MAX_LINES, MAX_CLAIM_LINES = 250, 150
MAX_LOCALS = 170
"""Lua allows 200 local names in a script."""

GIVEN = frozenset(
    [
        "and",
        "break",
        "do",
        "else",
        "elseif",
        "end",
        "false",
        "for",
        "function",
        "if",
        "in",
        "local",
        "nil",
        "not",
        "or",
        "repeat",
        "return",
        "then",
        "true",
        "until",
        "while",
        "KEYS",
        "ARGV",
        "redis",
        "cjson",
        "cmsgpack",
        "string",
        "math",
        "table",
        "ipairs",
        "pairs",
        "tonumber",
        "pcall",
        "type",
        "unpack",
        "next",
    ]
)
"""Words of the language, and what Redis gives a script."""

NOT_CODE = re.compile(r'--[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'')
NAME = re.compile(r"(?<![\w.:])[A-Za-z_]\w*")
FIELD = re.compile(r"(^|,)(\s*)[A-Za-z_]\w*\s*=(?!=)")
TOP_LEVEL = re.compile(r"^local (?:function (\w+)|(\w+(?:,\s*\w+)*))", re.MULTILINE)
OWN = (  # functions, variables, parameters, loop variables
    re.compile(r"\bfunction (\w+)"),
    re.compile(r"\blocal (?!function )(\w+(?:,\s*\w+)*)"),
    re.compile(r"\bfunction *\w*\(([^)]*)\)"),
    re.compile(r"\bfor ([\w, ]+?) *(?:=|in\b)"),
)


def split_names(groups: Iterable[str]) -> frozenset[str]:
    return frozenset(name for group in groups for name in re.findall(r"\w+", group))


@cache
def code(name: str) -> str:
    """Return a Lua file without comments and strings."""
    return NOT_CODE.sub(lambda found: "" if found[0].startswith("--") else '""', lua_text(name))


@cache
def defined(name: str) -> frozenset[str]:
    """Return the names that a file gives to those after it."""
    return split_names(group for match in TOP_LEVEL.findall(code(name)) for group in match)


@cache
def used(name: str) -> frozenset[str]:
    """Return the names that a file takes from those before it, by its text alone."""
    text = without_fields(code(name))
    own = split_names(group for pattern in OWN for group in pattern.findall(text))
    return frozenset(NAME.findall(text)) - GIVEN - own


def without_fields(text: str) -> str:
    """Drop the names of fields from table constructors; what they are set to stays."""
    depth, parts = 0, []
    for part in re.split(r"([{}])", text):
        depth += {"{": 1, "}": -1}.get(part, 0)
        parts.append(FIELD.sub(r"\1\2", part) if depth else part)
    return "".join(parts)


def parts_of(verb: str) -> list[str]:
    return [*(f"includes/{subject}" for subject in INCLUDES[verb]), verb]


SUBJECTS = sorted({subject for included in INCLUDES.values() for subject in included})


def test_every_file_stands_in_the_table() -> None:
    assert {path.name for path in LUA.iterdir() if path.is_file()} == {f"{v}.lua" for v in VERBS}
    assert sorted(path.name for path in (LUA / "includes").iterdir()) == [
        f"{subject}.lua" for subject in SUBJECTS
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_verb_has_every_function_that_it_calls(verb: str) -> None:
    """A subject finds what it uses in those before it, the verb in all of them."""
    known: frozenset[str] = frozenset()
    for name in parts_of(verb):
        assert used(name) - known == set(), name
        known |= defined(name)


@pytest.mark.parametrize("verb", VERBS)
def test_verb_uses_every_subject_that_it_includes(verb: str) -> None:
    needed: frozenset[str] = frozenset()
    for name in reversed(parts_of(verb)):
        assert name == verb or needed & defined(name), name
        needed |= used(name)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_name_of_a_subject_is_used(subject: str) -> None:
    name = f"includes/{subject}"
    elsewhere = split_names(
        word for verb in VERBS for other in parts_of(verb) if other != name for word in used(other)
    )
    words = re.findall(r"\w+", code(name))
    assert {n for n in defined(name) - elsewhere if words.count(n) == 1} == set()


def test_no_two_subjects_define_one_name() -> None:
    names = [name for subject in SUBJECTS for name in defined(f"includes/{subject}")]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("verb", VERBS)
def test_script_stays_within_the_limits(verb: str) -> None:
    assert sum(len(defined(name)) for name in parts_of(verb)) <= MAX_LOCALS
    for name in parts_of(verb):
        num_lines = len(lua_text(name).splitlines())
        assert num_lines <= (MAX_CLAIM_LINES if name == "claim" else MAX_LINES), name


@pytest.mark.parametrize(
    ("verb", "flags"),
    [
        ("submit", "#!lua"),
        ("requeue", "#!lua"),
        ("read_together", "#!lua flags=no-writes"),
        ("ack", "#!lua flags=allow-oom"),
    ],
)
def test_script_begins_with_its_flags(verb: str, flags: str) -> None:
    assert script_source(verb).splitlines()[0] == flags


def test_the_documented_user_may_run_every_command_of_the_scripts() -> None:
    """A right that is missing shows only when a script reaches the command; then each claim fails."""
    text = (ROOT / "docs" / "operations.md").read_text()
    lines = re.findall(r"^ACL SETUSER gristmill (?!.*sentinel).*", text, re.MULTILINE)
    rights = {word[1:] for line in lines for word in line.split() if word.startswith("+")}
    scripts = [*ROOT.glob("shared/**/*.lua"), *ROOT.glob("producer/**/*.lua")]
    calls = {
        command.lower()
        for script in scripts
        for words in re.findall(r"\bcall\(([^,()]*)", script.read_text())
        for command in re.findall(r'"([A-Z]+)"', words)
    }
    assert {"lpush", "rpush", "zpopmin", "srandmember"} <= calls
    assert calls - rights == set()

import re
from dataclasses import fields
from pathlib import Path

import pytest

from gristmill.shared.errors import SettingsError
from gristmill.shared.keys import LANES, ORDERED_KINDS, PENDING, DirectoryKeys, Keys, queue_of
from gristmill.shared.request import PRIORITIES
from gristmill.shared.scripts import VERBS, script_source

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = re.compile(r"^-- {3}([a-z_]+(?:, [a-z_]+)?)(?::<\w+>)*(?::<\w+>)? +[A-Z]", re.MULTILINE)


def test_ordered_kinds_are_those_of_the_scripts() -> None:
    lanes = (ROOT / "shared/gristmill/shared/lua/includes/lanes.lua").read_text()
    kinds = re.search(r"^local KINDS = \{ (.+?) \}", lanes, re.MULTILINE)
    assert kinds
    assert tuple(re.findall(r'"(\w+)"', kinds[1])) == (PENDING, *ORDERED_KINDS)


@pytest.mark.parametrize("name", ["default", "a", "a.b", "A_b-9.0", "x" * 64])
def test_allowed_queue_names_share_one_hash_tag(name: str) -> None:
    keys = Keys(name)
    assert keys.prefix == f"gm:{{{name}}}:"
    assert keys.request("0-x").startswith(keys.prefix)


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a:b", "a{b", "a}b", "a*b", "é", "a\n"])
def test_other_queue_names_are_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError, match="GRISTMILL_QUEUE"):
        Keys(name)


def test_directory_has_one_hash_tag_that_no_queue_can_have() -> None:
    keys = DirectoryKeys()
    made = [
        keys.format,
        keys.tenants,
        keys.api_keys,
        keys.queues,
        keys.tenant("t"),
        keys.rate("t"),
        keys.live("t"),
    ]
    assert len(set(made)) == len(made)
    assert all(key.startswith(keys.prefix) for key in made)
    assert keys.prefix == Keys("q").prefix.replace("{q}", "{@}")
    assert [queue_of(key.encode()) for key in made] == [None] * len(made)
    with pytest.raises(SettingsError):
        Keys("@")


def test_no_two_keys_collide() -> None:
    keys = Keys("q")
    names = [name for name in dir(keys) if not name.startswith("_")]
    two_names = {"batches_due", "idempotency"}
    plain = {f.name for f in fields(keys)} | {"prefix", "pattern", "of_kind", "parse", "waiting"}
    made = [getattr(keys, name) for name in names if name not in plain | two_names]
    values = [value if isinstance(value, str) else value("x") for value in made]
    values += [keys.waiting("x", "x", kind) for kind in (PENDING, *ORDERED_KINDS)]
    values += [getattr(keys, name)("x", "x") for name in sorted(two_names)]
    assert len(set(values)) == len(values)
    assert all(value.startswith(keys.prefix) for value in values)


@pytest.mark.parametrize(
    "key", [Keys("q").stats, Keys("q").waiting("high", "a:b"), Keys("q").result("x")]
)
def test_key_taken_apart_can_be_put_together(key: str) -> None:
    keys = Keys("q")
    assert keys.of_kind(*keys.parse(key.encode())) == key


def test_no_other_module_formats_a_key() -> None:
    formatting = re.compile(r"keys\.prefix\}|keys\.prefix \+|\+ \S*keys\.prefix|gm:\{")
    portions = [
        path
        for side in ("bench", "local", "producer", "worker", "shared")
        for path in (ROOT / side).rglob("*.py")
    ]
    found = [path.name for path in portions if formatting.search(path.read_text())]
    assert found == ["keys.py"]


def test_every_key_stands_in_the_schema_of_the_scripts() -> None:
    schema = script_source("stats").split("local prefix")[0]
    words = {w for match in SCHEMA.findall(schema) for w in match.split(", ")}
    assert {PENDING, *ORDERED_KINDS} <= words
    keys = Keys("q")
    for name in ("inbox", "doorbell", "dead_letters", "dead_letter_info", "scheduling",
                 "times", "virtual_time", "tenant_weights", "owner", "stats", "workers", "delayed",
                 "deadlines", "attempts", "batches_done"):  # fmt: skip
        assert getattr(keys, name).removeprefix(keys.prefix) in words
    for method in (
        keys.request,
        keys.result,
        keys.finished,
        keys.worker,
        keys.in_flight,
        keys.batch,
    ):
        assert method("x").removeprefix(keys.prefix).partition(":")[0] in words


@pytest.mark.parametrize("verb", VERBS)
def test_every_script_says_its_keys_arguments_and_answer(verb: str) -> None:
    own = script_source(verb).rpartition("-- " + verb + ":")[2]
    head = own.split("\n\n")[0]
    assert "KEYS[1]" in head
    assert "Returns" in head
    assert ("ARGV[" not in own) or ("ARGV" in head)


def test_suspects_come_before_the_priorities() -> None:
    assert ("suspect", *PRIORITIES) == LANES

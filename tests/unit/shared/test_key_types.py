"""Three lists of the keys and their types agree: the keys' docstrings, the audit's table, the scripts' check."""

import re
from inspect import signature

from gristmill.shared.key_types import type_of
from gristmill.shared.keys import Keys
from gristmill.shared.queue_stats import moved_in_words
from gristmill.shared.scripts import VERBS, lua_text, script_source


def test_every_key_has_a_type() -> None:
    keys = Keys("q")
    for name, member in vars(Keys).items():
        if found := re.match(r"(STRING|LIST|SET|HASH|ZSET)\b(?! or)", member.__doc__ or ""):
            key = getattr(keys, name)
            if callable(key):
                key = key(*("x" for _ in signature(key).parameters))
            is_known = type_of(*keys.parse(key.encode())) == found[1].lower()
            assert is_known, f"key_types.py has another type for {name}, or none"


def checked_names(verb: str) -> set[str]:
    """Return the keys whose types the script of a verb checks before it writes."""
    (table,) = re.findall(r"CHECKED_NAMES = (.*)", script_source(verb)) or [""]
    return set(re.findall(r"'([\w:]+)'", table))


def test_script_checks_the_keys_that_it_uses_and_no_others() -> None:
    assert checked_names("beat") == {"times", "workers", "wrong_types"}
    assert {"delayed", "flows:high", "debt:low", "tenant_weights"} < checked_names("claim")
    assert "owner" not in checked_names("submit")


def test_every_key_without_a_name_is_checked_by_some_script() -> None:
    found = re.findall(
        r"^--   (\w+) +(?:LIST|SET|HASH|ZSET) ", lua_text("includes/schema"), re.MULTILINE
    )
    assert len(found) > 20
    assert set(found) <= set().union(*map(checked_names, VERBS))


def test_words_name_the_key_its_new_name_and_the_remedy() -> None:
    assert moved_in_words(Keys("q"), {}) == ""
    words = moved_in_words(Keys("q"), {"delayed": "list", "owner": "string"})
    assert "gm:{q}:delayed was a list, a wrong type, and is now gm:{q}:wrong_type:delayed" in words
    assert "gm:{q}:owner was a string" in words

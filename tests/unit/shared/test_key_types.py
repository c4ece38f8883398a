"""Three lists of the keys and their types agree: the keys' docstrings, the audit's table, the scripts' check."""

import re
from inspect import signature

from gristmill.shared.key_types import moved_in_words, type_of
from gristmill.shared.keys import Keys
from gristmill.shared.scripts import lua_text


def test_every_key_has_a_type() -> None:
    keys = Keys("q")
    for name, member in vars(Keys).items():
        if found := re.match(r"(STRING|LIST|SET|HASH|ZSET)\b(?! or)", member.__doc__ or ""):
            key = getattr(keys, name)
            if callable(key):
                key = key(*("x" for _ in signature(key).parameters))
            is_known = type_of(*keys.parse(key.encode())) == found[1].lower()
            assert is_known, f"key_types.py has another type for {name}, or none"


def test_fixed_keys_of_the_schema_are_checked_by_scripts() -> None:
    schema, types = (lua_text(f"includes/{name}") for name in ("schema", "types"))
    found = re.findall(r"^--   (\w+) +(?:LIST|SET|HASH|ZSET) ", schema, re.MULTILINE)
    assert len(found) > 20
    assert set(found) <= set(re.findall(r'"(\w+)"', types))


def test_words_name_the_key_its_new_name_and_the_remedy() -> None:
    assert moved_in_words(Keys("q"), {}) == ""
    words = moved_in_words(Keys("q"), {"delayed": "list", "owner": "string"})
    assert "gm:{q}:delayed was a list, a wrong type, and is now gm:{q}:wrong_type:delayed" in words
    assert "gm:{q}:owner was a string" in words

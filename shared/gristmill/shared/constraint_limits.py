"""Limit the constraints on an answer: choices, regular expressions, grammars, JSON Schemas and tools.

vLLM compiles constraints in a few threads that nothing can stop, half as many as there are cores. A
constraint that compiles for hours would hold up the constrained requests of everybody. At these
limits xgrammar compiles for seconds. `refusals.py` calls this module.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gristmill.shared.answers import mapping
from gristmill.shared.lenient_body import fields_of

MAX_CHOICES = 5_000
"""Most texts in one `choice` or `enum`. 10,000 compile for 1 s, 300,000 for more than 5 minutes."""

MAX_CHARS = 65_536
"""Most characters of one constraint, without its descriptions. Texts of so many compile for 3 to 6 s."""

MAX_REGEX_CHARS = 8_192
"""Most characters of one regular expression. 64,000 of them can compile for more than 25 s."""

MAX_REPETITIONS = 20_000
"""Most repetitions that `{m,n}` asks for in a constraint; nested counts multiply.

Patterns with 15,000 in one schema compile for 3 s, with 50,000 for more than 15 s.
"""

MAX_LENGTHS = 1_000_000
"""Largest sum of the lengths in a schema, such as `maxLength`. 5 million compile for 2 s, 50 million
for more than 25 s."""

MAX_PROPERTIES = 500
"""Most properties of one object in a schema. 600 compile for 1.3 s, 3,000 for more than 25 s."""

MAX_COUNT = 10**12
"""Largest number to calculate with; a larger one is above every limit anyway."""

_FIELDS = ("structured_outputs", "response_format", "output_config", "output_format", "tools")
_REGEXES = ("regex", "pattern", "whitespace_pattern")
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NOT_COMPILED = ("description", "title", "$comment")
_JSON_TEXTS = ("json", "structural_tag")

_COUNT = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")

_TEXT_CLASS_OR_COMMENT = re.compile(
    r"""("(?:\\.|[^"\\\r\n])*"?|\[(?:\\.|[^\]\\\r\n])*\]?)|(?:\#|//)[^\r\n]*""", re.DOTALL
)
"""A quoted text or a character class, as group 1, or a comment of a grammar.

xgrammar's comments begin with `#`. vLLM also removes those with `//` if a grammar has Lark's syntax.
The closing mark may be missing, so that many opening marks do not make the search quadratic.
"""


@dataclass
class _Size:
    """The size of one constraint, as far as it was read."""

    chars: int = 0
    repetitions: int = 0
    lengths: int = 0
    choices: int = 0
    properties: int = 0
    regex_chars: int = 0

    def excess(self) -> str | None:
        """Return the first limit that the constraint exceeds; None if there is none."""
        limits = (
            (self.choices, MAX_CHOICES, "choices in one list"),
            (self.properties, MAX_PROPERTIES, "properties in one object"),
            (self.regex_chars, MAX_REGEX_CHARS, "characters in one regular expression"),
            (self.repetitions, MAX_REPETITIONS, "repetitions by {m,n}, nested ones multiplied"),
            (self.lengths, MAX_LENGTHS, "as the sum of its lengths (maxLength, maxItems ...)"),
            (self.chars, MAX_CHARS, "characters"),
        )
        over = (
            f"{value:,} {what}, the limit is {limit:,}"
            for value, limit, what in limits
            if value > limit
        )
        return next(over, None)


def constraint_excess(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the name of a constraint above a limit and the text of the error; None if all are within.

    Args:
        fields: The fields of a body.
    """
    constraints = {name: fields[name] for name in _FIELDS if name in fields}
    if response_format := mapping(fields.get("text")).get("format"):  # of the Responses API
        constraints["text"] = response_format
    for name, constraint in constraints.items():
        if excess := _size_of(constraint).excess():
            return name, f"the constraint in {name} has {excess}; simplify it"
    return None


def repetitions(text: str, *, has_quotes: bool = False) -> int:
    """Return how many repetitions the counts `{m,n}` of a pattern ask for; nested counts multiply.

    Args:
        text: A regular expression or a grammar.
        has_quotes: True for a grammar, where quoted texts and comments hold no counts.
    """
    if has_quotes:  # a quote or bracket in a comment would hide what follows
        text = _TEXT_CLASS_OR_COMMENT.sub(lambda found: found[1] or " ", text)
    open_groups, atom_count = [0], 0  # a sum for each open group, and the sum of the last atom
    position, closing = 0, ""
    while position < len(text):
        char, length = text[position], 1
        if char == "\\":
            length, atom_count = 2, 0
        elif closing:
            closing = "" if char == closing else closing
        elif char == "[" or (has_quotes and char == '"'):
            closing, atom_count = "]" if char == "[" else char, 0
        elif char == "(":
            open_groups.append(0)
        elif char == ")" and len(open_groups) > 1:
            atom_count = open_groups.pop()
            open_groups[-1] += atom_count
        elif char == "{" and (found := _COUNT.match(text, position)):
            repeated = min(MAX_COUNT, _count(found) * max(1, atom_count))
            open_groups[-1] += repeated - atom_count
            atom_count, length = repeated, len(found[0])
        elif not char.isspace():
            atom_count = 0
        position += length
    return min(MAX_COUNT, sum(open_groups))


def _count(found: re.Match[str]) -> int:
    digits = (found[2] or found[1]).lstrip("0")
    return int(digits or "0") if len(digits) <= len(str(MAX_COUNT)) else MAX_COUNT


def _size_of(constraint: Any) -> _Size:
    size, values = _Size(), [constraint]
    while values:  # not by recursion, because constraints nest deeply
        value = values.pop()
        if isinstance(value, dict):
            values.extend(_parts(value, size))
        elif isinstance(value, list):
            values.extend(value)
        size.chars += len(value) if isinstance(value, str) else 1
    return size


def _parts(node: Mapping[str, Any], size: _Size) -> Iterator[Any]:
    """Yield the parts of an object that are compiled, and add the object's own size."""
    for name, value in node.items():
        if name in _NOT_COMPILED and isinstance(value, str):
            continue
        size.chars += len(name)
        if isinstance(value, str):
            _add_text(name, value, size)
        elif name in _LENGTHS and isinstance(value, int | float):
            size.lengths += int(min(MAX_COUNT, max(0, value)))
        elif name in ("choice", "enum") and isinstance(value, list):
            size.choices = max(size.choices, len(value))
        elif name == "properties":
            size.properties = max(size.properties, len(mapping(value)))
        elif name == "patternProperties":
            for pattern in mapping(value):
                _add_text("pattern", pattern, size)
        is_text = name in _JSON_TEXTS and isinstance(value, str)
        yield fields_of(value.encode(errors="replace")) if is_text else value


def _add_text(name: str, text: str, size: _Size) -> None:
    if name in _REGEXES:
        size.regex_chars = max(size.regex_chars, len(text))
    if name == "grammar" or name in _REGEXES:
        size.repetitions += repetitions(text[:MAX_CHARS], has_quotes=name == "grammar")

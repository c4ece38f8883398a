"""The types of columns that a JSON Schema describes, and the values of an answer in these types."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from gristmill.producer.tables.row_chunks import json_text
from gristmill.shared.answers import mapping
from gristmill.shared.one_line import shown

MAX_INT64 = 2**63 - 1
"""Largest value of a column of integers."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type without parts.

    Attributes:
        arrow: Type of the column.
        convert: Turns a valid value into one of this type.
    """

    arrow: Any
    convert: Callable[[Any], Any]

    def value(self, valid: Any) -> Any:
        """Return a valid value of the schema as one of the column.

        Raises:
            ValueError: The column has no such number.
        """
        return None if valid is None else self.convert(valid)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list whose items have one type."""

    item: "ColumnType"

    @property
    def arrow(self) -> Any:
        """Type of the column."""
        return pa.list_(self.item.arrow)

    def value(self, valid: Any) -> Any:
        """See `Scalar`."""
        return None if valid is None else [self.item.value(each) for each in valid]


@dataclass(frozen=True, slots=True)
class Record:
    """An object with named fields. Fields that the schema does not name are left out."""

    fields: tuple[tuple[str, "ColumnType"], ...]

    @property
    def arrow(self) -> Any:
        """Type of the column."""
        return pa.struct([(name, kind.arrow) for name, kind in self.fields])

    def value(self, valid: Any) -> Any:
        """See `Scalar`."""
        if valid is None:
            return None
        return {name: kind.value(valid.get(name)) for name, kind in self.fields}


ColumnType = Scalar | ListOf | Record


def _as_is(value: Any) -> Any:
    return value


def _integer(value: Any) -> int:
    """Return a number without a fraction as an integer; JSON Schema takes 1.0 for one, too."""
    number = int(value)
    if not -MAX_INT64 - 1 <= number <= MAX_INT64:
        raise ValueError(f"{shown(value)} does not fit into 64 bits")
    return number


TEXT = Scalar(pa.string(), _as_is)
INTEGER = Scalar(pa.int64(), _integer)
NUMBER = Scalar(pa.float64(), float)
BOOLEAN = Scalar(pa.bool_(), _as_is)
JSON_TEXT = Scalar(pa.string(), json_text)
"""The type of values that may have several types: each is a text of JSON."""

MAX_PARTS = 10_000
"""Parts of a schema that get a type, each counted as often as references lead to it; later ones become texts of JSON."""

_SCALARS = {"string": TEXT, "integer": INTEGER, "number": NUMBER, "boolean": BOOLEAN}
_TYPES_OF_VALUES = {str: TEXT, int: INTEGER, float: NUMBER, bool: BOOLEAN}


def properties_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the properties of the object that a JSON Schema describes; none if it describes something else."""
    node = _followed(document, document)[0]
    is_object = node.get("type") in ("object", ["object"])
    return mapping(node.get("properties")) if is_object else {}


def column_types(document: Mapping[str, Any]) -> dict[str, ColumnType]:
    """Return the type of each property of the object that a JSON Schema describes.

    Lists become lists, and objects with properties become records. A value becomes a text of JSON if it may have
    several types, is an object without properties, contains itself, or comes after `MAX_PARTS` others.
    """
    node, followed = _followed(document, document)
    kinds = _Types(document)
    return {
        name: kinds.of(part, followed) for name, part in mapping(node.get("properties")).items()
    }


class _Types:
    """The types of the parts of one document.

    Each method gets the references that lead to its part, since one that leads to itself has no type.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._num_parts = 0

    def of(self, part: Any, followed: frozenset[str]) -> ColumnType:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            return JSON_TEXT
        node, now = _followed(self._document, part, followed)
        if "enum" in node or "const" in node:
            values = node["enum"] if "enum" in node else [node["const"]]
            return _common(
                [_TYPES_OF_VALUES.get(type(each)) for each in values if each is not None]
            )
        if "type" in node:
            names = node["type"] if isinstance(node["type"], list) else [node["type"]]
            return _common([self._of_type(name, node, now) for name in names if name != "null"])
        choices: Sequence[Any] = next(
            (node[name] for name in ("anyOf", "oneOf", "allOf") if name in node), ()
        )
        if "allOf" in node and len(choices) != 1:
            return JSON_TEXT
        return _common([self.of(each, now) for each in choices if not _is_null(each)])

    def _of_type(self, name: str, node: Mapping[str, Any], now: frozenset[str]) -> ColumnType:
        if name == "array" and isinstance(node.get("items"), dict) and "prefixItems" not in node:
            return ListOf(self.of(node["items"], now))
        if name == "object" and (properties := mapping(node.get("properties"))):
            return Record(tuple((each, self.of(properties[each], now)) for each in properties))
        return _SCALARS.get(name, JSON_TEXT)


def _common(kinds: Sequence[ColumnType | None]) -> ColumnType:
    """Return the one type of several alternatives, or a text of JSON."""
    different = list(dict.fromkeys(kinds))
    if len(different) == 1 and different[0] is not None:
        return different[0]
    return NUMBER if set(different) == {INTEGER, NUMBER} else JSON_TEXT


def _is_null(part: Any) -> bool:
    return mapping(part).get("type") == "null"


def _followed(
    document: Mapping[str, Any], part: Any, followed: frozenset[str] = frozenset("#")
) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Return the part to which references lead, and the references; nothing for one that leads to itself."""
    node = mapping(part)
    while isinstance(reference := node.get("$ref"), str):
        if reference in followed:
            return {}, followed
        followed |= {reference}
        node = mapping(_target(document, reference))
    return node, followed


def _target(document: Mapping[str, Any], reference: str) -> Any:
    """Return the part of a document that a JSON pointer names (RFC 6901); None for another reference."""
    if not reference.startswith("#/"):
        return None
    node: Any = document
    for step in _steps(reference):
        node = node[int(step)] if isinstance(node, list) else mapping(node).get(step)
    return node


def _steps(reference: str) -> Iterator[str]:
    for step in reference[2:].split("/"):
        yield unquote(step).replace("~1", "/").replace("~0", "~")

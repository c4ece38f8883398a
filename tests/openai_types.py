"""Walk through the types of OpenAI's client, and compare JSON answers with them strictly.

The client itself is lenient: it accepts missing fields, wrong types and unknown words, and says nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

_PLAIN: Mapping[Any, tuple[type, ...]] = {
    str: (str,), bool: (bool,), int: (int,), float: (int, float), NoneType: (NoneType,),
}  # fmt: skip


@dataclass
class Comparison:
    """What answers have in common with the types. A field is called `module.Type.field`.

    Attributes:
        wrong: Places of values that their type does not allow, and of missing fields.
        extra: Fields of answers that their type does not have.
        sent: Fields of the types that some answer has, with a value other than null.
        fields: All fields of the types that occur in the answers.
    """

    wrong: list[str] = field(default_factory=list)
    extra: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)

    @property
    def never_sent(self) -> set[str]:
        """Fields of the types that no answer has."""
        return self.fields - self.sent

    def add(self, value: Any, kind: Any, path: str = "") -> None:
        """Compare a value with a type.

        Args:
            value: JSON value.
            kind: Type, as an annotation has it.
            path: Place of the value in its answer.
        """
        kind, origin = _unwrapped(kind)
        if origin in {Union, UnionType}:
            self._add_one_of(value, get_args(kind), path)
        elif origin is Literal:
            self._check(value in get_args(kind) and type(value) in map(type, get_args(kind)), value, kind, path)  # fmt: skip
        elif origin is list:
            self._add_list(value, get_args(kind)[0], path)
        elif origin is dict:
            self._add_dict(value, get_args(kind)[1], path)
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            self._add_model(value, kind, path)
        elif kind not in {Any, object}:
            is_right = isinstance(value, _PLAIN[kind]) and (type(value) is not bool or kind is bool)
            self._check(is_right, value, kind, path)

    def _check(self, is_right: bool, value: Any, kind: Any, path: str) -> None:
        if not is_right:
            self.wrong.append(
                f"{path}: {str(value)[:60]!r} is no {getattr(kind, '__name__', kind)}"
            )

    def _add_one_of(self, value: Any, kinds: tuple[Any, ...], path: str) -> None:
        """Compare with the member of a union that fits best: the fewest wrong fields, then the fewest extra ones."""
        kinds = tuple(kind for kind in kinds if value is None or kind is not NoneType)
        tried = [Comparison() for _ in kinds]
        for each, kind in zip(tried, kinds, strict=True):
            each.add(value, kind, path)
        best = min(tried, key=lambda each: (len(each.wrong), len(each.extra)))
        self.wrong += best.wrong
        self.extra |= best.extra
        self.sent |= best.sent
        self.fields |= best.fields

    def _add_list(self, value: Any, kind: Any, path: str) -> None:
        self._check(isinstance(value, list), value, list, path)
        for number, each in enumerate(value if isinstance(value, list) else ()):
            self.add(each, kind, f"{path}[{number}]")

    def _add_dict(self, value: Any, kind: Any, path: str) -> None:
        self._check(isinstance(value, dict), value, dict, path)
        for name, each in (value if isinstance(value, dict) else {}).items():
            self.add(each, kind, f"{path}.{name}")

    def _add_model(self, value: Any, kind: type[BaseModel], path: str) -> None:
        self._check(isinstance(value, dict), value, kind, path)
        if not isinstance(value, dict):
            return
        type_name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__.partition('[')[0]}"
        known = {info.alias or name: info for name, info in kind.model_fields.items()}
        self.extra |= {f"{type_name}.{name}" for name in value.keys() - known.keys()}
        for name, info in known.items():
            where = f"{path}.{name}".lstrip(".")
            self.fields.add(f"{type_name}.{name}")
            if name in value:
                self.add(value[name], info.annotation, where)
                if value[name] is not None:
                    self.sent.add(f"{type_name}.{name}")
            elif info.is_required():
                self.wrong.append(f"{where}: missing")


def _unwrapped(kind: Any) -> tuple[Any, Any]:
    """Return a type without `Annotated`, and its origin."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return kind, get_origin(kind)

"""Build the whole answer of a chat or a completion from its chunks. `streamed_answer.py` calls it.

The chunks of OpenAI's API carry parts of texts, of tool calls and of logprobs. The whole answer has the fields that
the same request gets without a stream, except fields of vLLM that are null there.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from gristmill.shared.answers import mapping

MAX_INDEX = 1024
"""Bound of the indexes of choices and tool calls, since the answer gets an entry for each index below the largest."""

ENTRY_BYTES = 64
"""Bytes that a name, a choice or a tool call counts beside its values."""


class ChunkedAnswer:
    """The answer so far.

    Attributes:
        num_bytes: About how many bytes the answer has, as JSON.
    """

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self.num_bytes = 0

    @property
    def is_complete(self) -> bool:
        """True once every choice has a finish_reason."""
        reasons = [choice["finish_reason"] for choice in self._choices.values()]
        return bool(reasons) and None not in reasons

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Add one chunk, the one with the usage included.

        Raises:
            ValueError: An index is out of its range.
            TypeError: A part of the chunk is of another type than in OpenAI's API.
        """
        for name, value in chunk.items():
            if name != "choices" and value is not None:
                self._set(self._fields, name, value)
        for part in _objects_in(chunk, "choices"):
            index = _index_of(part)
            if index not in self._choices:
                self._choices[index] = _empty_choice(index, part)
                self.num_bytes += ENTRY_BYTES
            self._add_to_choice(self._choices[index], part)

    def fields(self) -> dict[str, Any]:
        """Return the whole answer."""
        kind = str(self._fields.get("object", "")).removesuffix(".chunk")
        choices = [self._choices[index] for index in sorted(self._choices)]
        return self._fields | {"object": kind, "choices": choices}

    def _add_to_choice(self, choice: dict[str, Any], part: Mapping[str, Any]) -> None:
        for name, value in part.items():
            if value is None or name == "index":
                continue
            if name == "delta":
                self._add_to_message(choice["message"], _object(name, value))
            elif name == "logprobs":
                choice[name] = choice[name] or {}
                for list_name, items in mapping(value).items():
                    self._join(choice[name], list_name, items)
            else:
                self._join(choice, name, value)

    def _add_to_message(self, message: dict[str, Any], delta: Mapping[str, Any]) -> None:
        for name, value in delta.items():
            if name == "tool_calls":
                for call in _objects_in(delta, name):
                    self._add_tool_call(message.setdefault("tool_calls", []), call)
            elif value is not None:
                self._join(message, name, value)

    def _add_tool_call(self, calls: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
        index = _index_of(part)
        while len(calls) <= index:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
            self.num_bytes += ENTRY_BYTES
        call = calls[index]
        for name in ("id", "type"):
            if part.get(name):
                self._set(call, name, part[name])
        for name, value in mapping(part.get("function")).items():
            if value is not None:
                self._join(call["function"], name, value)

    def _join(self, owner: dict[str, Any], name: str, value: Any) -> None:
        """Append a part to the text or the list that an object has under a name; replace other values."""
        before = owner.get(name)
        is_part = type(before) is type(value) and isinstance(value, str | list)
        if is_part and name not in _WHOLE:
            self.num_bytes += _size(value)
            owner[name] = before + value
        else:
            self._set(owner, name, value)

    def _set(self, owner: dict[str, Any], name: str, value: Any) -> None:
        """Set a field; most chunks repeat what the field has."""
        before = owner.get(name)
        if before != value:
            replaced = _size(before) if name in owner else -ENTRY_BYTES
            self.num_bytes += _size(value) - replaced
            owner[name] = value


_WHOLE = ("finish_reason", "stop_reason", "role")
"""Texts that one chunk carries whole."""


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str) else len(orjson.dumps(value))


def _index_of(part: Mapping[str, Any]) -> int:
    index = part.get("index") or 0
    if type(index) is not int or not 0 <= index < MAX_INDEX:
        raise ValueError(
            f"index is {str(index)[:50]}; it has to be a whole number below {MAX_INDEX:,}"
        )
    return index


def _objects_in(owner: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    items = owner.get(name) or []
    if not isinstance(items, list):
        raise TypeError(f"{name} is {str(items)[:50]}; it has to be a list")
    return [_object(name, item) for item in items]


def _object(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} has {str(value)[:50]} where an object has to be")
    return value


def _empty_choice(index: int, part: Mapping[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": None}
    if "delta" in part:
        return choice | {"message": {"role": "assistant", "content": None}}
    return choice | {"text": ""}

"""Build the whole answer of a chat or a completion from its chunks. `streamed_answer.py` calls it.

The chunks of OpenAI's API carry parts of texts, of tool calls and of logprobs. The whole answer has the fields that
the same request gets without a stream, except fields of vLLM that are null there.
"""

from collections.abc import Mapping
from typing import Any

from gristmill.shared.answers import list_in, mapping

LIST_ITEM_BYTES = 64
"""Bytes that an item of a list, such as a token's logprobs, counts at least."""


class ChunkedAnswer:
    """The answer so far.

    Attributes:
        num_bytes: About how many bytes the answer has.
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
        """Add one chunk, the one with the usage included."""
        self._fields |= {
            name: value for name, value in chunk.items() if name != "choices" and value is not None
        }
        for part in map(mapping, list_in(chunk.get("choices"))):
            index = part.get("index", 0)
            choice = self._choices.setdefault(index, _empty_choice(index, part))
            self._add_to_choice(choice, part)

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
                self._add_to_message(choice["message"], mapping(value))
            elif name == "logprobs":
                choice[name] = choice[name] or {}
                for list_name, items in mapping(value).items():
                    self._join(choice[name], list_name, items)
            else:
                self._join(choice, name, value)

    def _add_to_message(self, message: dict[str, Any], delta: Mapping[str, Any]) -> None:
        for name, value in delta.items():
            if name == "tool_calls":
                for call in map(mapping, list_in(value)):
                    self._add_tool_call(message.setdefault("tool_calls", []), call)
            elif name == "role":
                message["role"] = value
            elif value is not None:
                self._join(message, name, value)

    def _add_tool_call(self, calls: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
        index = part.get("index", 0)
        while len(calls) <= index:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[index]
        call.update({name: part[name] for name in ("id", "type") if part.get(name)})
        for name, value in mapping(part.get("function")).items():
            if value is not None:
                self._join(call["function"], name, value)

    def _join(self, owner: dict[str, Any], name: str, value: Any) -> None:
        """Append a part to the text or the list that an object has under a name; replace other values."""
        before = owner.get(name)
        is_part = type(before) is type(value) and isinstance(value, str | list)
        owner[name] = before + value if is_part and name not in _WHOLE else value
        if isinstance(value, str):
            self.num_bytes += len(value)
        elif isinstance(value, list):
            self.num_bytes += LIST_ITEM_BYTES * len(value)


_WHOLE = ("finish_reason", "stop_reason")
"""Texts that one chunk carries whole."""


def _empty_choice(index: int, part: Mapping[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": None}
    if "delta" in part:
        return choice | {"message": {"role": "assistant", "content": None}}
    return choice | {"text": ""}

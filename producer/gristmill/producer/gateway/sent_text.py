"""Remember what a stream has sent, so that an answer that is computed again goes on where the first one broke off.

Another delivery sends the whole answer again. `SentText` compares it with what was sent, for each choice and also for
its reasoning and its tool calls. It leaves out identical text, and raises `Diverged` at a difference.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gristmill.producer.gateway.growing_text import Diverged, GrowingText, tokens_within
from gristmill.shared.answers import list_in, mapping

Key = tuple[int, str]
"""A choice, and the name of a text in it: `text`, `content`, `reasoning`, `call 0`."""


class SentText:
    """What one stream of a chat or of completions has sent."""

    def __init__(self) -> None:
        self._delivery = 0
        self._is_replay = False
        self._texts = defaultdict[Key, GrowingText](GrowingText)
        self._replayed: dict[Key, int] = {}
        self._begun: set[int] = set()
        self._finished: dict[int, str] = {}
        self._has_usage = False
        self._same: dict[str, Any] = {}

    @property
    def is_behind(self) -> bool:
        """True while the new delivery is shorter than what was sent."""
        return self._is_replay and any(map(self._lacks, self._begun))

    def pass_on(self, delivery: int, event: bytes) -> bytes | None:
        """Return the part of an event that the client does not have yet, or None.

        Args:
            delivery: Number of the delivery that made the event.
            event: A `data:` line of vLLM.

        Raises:
            Diverged: The text differs from what an earlier delivery has sent.
        """
        chunk = orjson.loads(event.removeprefix(b"data:"))
        if delivery != self._delivery:
            self._delivery, self._replayed = delivery, {}
            self._is_replay = bool(self._begun)
        if not self._is_replay:
            self._note(chunk)
            return event
        changed = self._without_sent(chunk)
        return None if changed is None else b"data: " + orjson.dumps(changed)

    def rest_of(self, answer: Mapping[str, Any], *, shows_usage: bool) -> Iterator[bytes]:
        """Yield the events that complete what was sent to a whole answer.

        Args:
            answer: The whole answer.
            shows_usage: True if the usage is an event.

        Raises:
            Diverged: The answer does not begin with what was sent.
        """
        self._is_replay, self._replayed = bool(self._begun), {}
        is_chat = answer.get("object") == "chat.completion"
        kind = "chat.completion.chunk" if is_chat else answer.get("object")
        same = {name: answer[name] for name in ("id", "created", "model") if name in answer}
        chunks: list[dict[str, Any]] = [
            same | {"object": kind, "choices": [_as_part(choice)]}
            for choice in map(mapping, list_in(answer.get("choices")))
        ]
        if shows_usage:
            chunks.append(same | {"object": kind, "choices": [], "usage": answer.get("usage")})
        passed = [self._without_sent(chunk) for chunk in chunks]
        if self.is_behind:
            raise Diverged
        for chunk in filter(None, passed):
            yield b"data: " + orjson.dumps(chunk)

    def _lacks(self, index: int) -> bool:
        """Return whether a choice of the new delivery is shorter than what was sent of it."""
        return any(
            self._replayed.get(key, 0) < text.num_chars
            for key, text in self._texts.items()
            if key[0] == index
        )

    def _note(self, chunk: Mapping[str, Any]) -> None:
        self._same = self._same or {name: chunk.get(name) for name in ("id", "created")}
        self._has_usage |= not chunk.get("choices")
        for part in list_in(chunk.get("choices")):
            index = part.get("index", 0)
            self._begun.add(index)
            for key, holder, name in _texts_in(part):
                self._texts[key].append(holder[name])
            if part.get("finish_reason"):
                self._finished[index] = part["finish_reason"]

    def _without_sent(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """Return the chunk without what was sent, or None if nothing is left of it."""
        if not chunk["choices"]:
            is_new, self._has_usage = not self._has_usage, True
            return chunk | self._same if is_new else None
        chunk["choices"] = [part for part in chunk["choices"] if self._is_new(part)]
        self._same = self._same or {name: chunk.get(name) for name in ("id", "created")}
        return chunk | self._same if chunk["choices"] else None

    def _is_new(self, part: dict[str, Any]) -> bool:
        """Cut what was sent out of a choice; return whether something is left."""
        index = part.get("index", 0)
        is_new = index not in self._begun or bool(part.get("logprobs") and not self._lacks(index))
        self._begun.add(index)
        for key, holder, name in list(_texts_in(part)):
            is_new |= key not in self._texts
            num_cut = self._cut(key, holder, name)
            is_new |= bool(holder[name])
            if num_cut and name in ("text", "content"):
                _cut_logprobs(part, num_cut)
        reason = part.get("finish_reason")
        if reason and index not in self._finished:
            if self._lacks(index):
                raise Diverged
            self._finished[index] = reason
            return True
        return is_new

    def _cut(self, key: Key, holder: dict[str, Any], name: str) -> int:
        """Cut the sent beginning out of a text; return how many characters it has."""
        text, sent = holder[name], self._texts[key]
        at = self._replayed.get(key, 0)
        num_cut = sent.repeated(text, at)
        if len(text) > num_cut and key[0] in self._finished:
            raise Diverged  # the first delivery had ended here
        holder[name] = text[num_cut:]
        self._replayed[key] = at + len(text)
        sent.append(holder[name])
        return num_cut


def _texts_in(part: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any], str]]:
    """Yield the texts of a choice: its key, and the object and the name under which it stands."""
    index = part.get("index", 0)
    if isinstance(part.get("text"), str):
        yield (index, "text"), part, "text"
    delta = part.get("delta") or {}
    for name in ("content", "reasoning", "reasoning_content", "refusal"):
        if isinstance(delta.get(name), str):
            yield (index, name), delta, name
    for call in list_in(delta.get("tool_calls")):
        function = call.get("function")
        if isinstance(function, dict):
            function.setdefault("arguments", "")
            yield (index, f"call {call.get('index', 0)}"), function, "arguments"


def _as_part(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return a choice of a whole answer as one chunk has it."""
    part = {
        name: value for name, value in choice.items() if name != "message" and value is not None
    }
    if "message" not in choice:
        return part
    message = mapping(choice["message"])
    delta = {name: value for name, value in message.items() if value is not None}
    if calls := list_in(message.get("tool_calls")):
        delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
    return part | {"delta": delta}


def _cut_logprobs(part: dict[str, Any], num_chars: int) -> None:
    """Cut the logprobs of the tokens within the first characters."""
    logprobs = part.get("logprobs")
    if not isinstance(logprobs, dict):
        return
    tokens = logprobs.get("tokens") or [item["token"] for item in logprobs.get("content") or ()]
    number = tokens_within(tokens, num_chars)
    for name, items in logprobs.items():
        if isinstance(items, list):
            logprobs[name] = items[number:]

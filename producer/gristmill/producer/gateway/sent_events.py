"""Remember what a stream of the Responses API has sent, so that a response that is computed again goes on in it.

The events of this API are numbered, and each delivery of a request makes its own ids. So the gateway compares a new
delivery with the events that it sent: texts by their characters, other events by their types. It leaves out what is
identical. All other events get the ids and the time of the first delivery, and the next numbers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gristmill.producer.gateway.growing_text import Diverged, GrowingText, tokens_within
from gristmill.shared.answers import list_in, mapping

NAMES = ("id", "item_id", "call_id", "created_at")
"""Fields that differ in each delivery of the same answer."""


class _Sent:
    """One event that was sent, or the successive deltas of one text.

    Attributes:
        kind: Its type and the indexes of its place in the response.
        names: The values of its `NAMES`.
        text: The deltas, joined; None for an event without a delta.
    """

    def __init__(self, event: Mapping[str, Any]) -> None:
        self.kind = _kind_of(event)
        self.names = list(_names_in(event))
        self.text = GrowingText() if _is_delta(event) else None


class SentEvents:
    """Record of the events that one stream of the Responses API has sent."""

    def __init__(self) -> None:
        self._delivery = 0
        self._sent: list[_Sent] = []
        self._num_events = 0
        self._is_first = True
        self._begin()

    @property
    def is_behind(self) -> bool:
        """True while the new delivery is shorter than what was sent."""
        rest = self._sent[self._at :]
        return bool(rest) and (len(rest) > 1 or not self._is_at_end_of(rest[0]))

    def pass_on(self, delivery: int, event: bytes) -> bytes | None:
        """Return the part of an event that the client does not have yet, or None.

        Args:
            delivery: Number of the delivery that made the event.
            event: The `event:` and `data:` lines of vLLM.

        Raises:
            Diverged: It differs from what an earlier delivery has sent.
        """
        if delivery != self._delivery:
            self._delivery = delivery
            self._begin()
        passed = self._pass(orjson.loads(event.partition(b"data:")[2]))
        if self._is_first:
            return event
        return None if passed is None else _as_event(passed)

    def rest_of(
        self, answer: Mapping[str, Any], *, shows_usage: bool
    ) -> Iterator[bytes]:  # the last event has the usage
        """Yield the events that complete what was sent to a whole response.

        Raises:
            Diverged: The response begins with other events than the stream.
        """
        self._begin()
        passed = [self._pass({"type": kind, **fields}) for kind, fields in _events_of(answer)]
        if self.is_behind:
            raise Diverged
        yield from map(_as_event, filter(None, passed))

    def _begin(self) -> None:
        self._is_first = not self._sent
        self._at, self._at_char = 0, 0
        self._first_names: dict[Any, Any] = {}

    def _is_at_end_of(self, sent: _Sent) -> bool:
        return sent.text is not None and self._at_char == sent.text.num_chars

    def _pass(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Return what is new in an event, with the first delivery's ids and the next number; None if nothing is new."""
        kind = _kind_of(event)
        if self._at < len(self._sent):
            sent = self._sent[self._at]
            if kind != sent.kind and self._is_at_end_of(sent):
                self._at, self._at_char = self._at + 1, 0
        is_new = self._at == len(self._sent)
        if is_new:
            self._sent.append(_Sent(_renamed(event, self._first_names)))
        return self._numbered(event) if self._take(event, kind) or is_new else None

    def _take(self, event: dict[str, Any], kind: str) -> bool:
        """Compare an event with the one that was sent here, and cut its text; return whether some text is new."""
        sent = self._sent[self._at]
        if kind != sent.kind:
            raise Diverged
        self._first_names |= dict(zip(_names_in(event), sent.names, strict=False))
        if sent.text is None:
            self._at += 1
            return False
        text: str = event["delta"]
        num_cut = sent.text.repeated(text, self._at_char)
        event["delta"] = text[num_cut:]
        if num_cut:
            logprobs = list_in(event.get("logprobs"))
            tokens = [mapping(item).get("token", "") for item in logprobs]
            event["logprobs"] = logprobs[tokens_within(tokens, num_cut) :]
        if event["delta"] and self._at < len(self._sent) - 1:
            raise Diverged  # this text had ended here
        sent.text.append(event["delta"])
        self._at_char += len(text)
        return bool(event["delta"])

    def _numbered(self, event: dict[str, Any]) -> dict[str, Any]:
        event = _renamed(event, self._first_names) | {"sequence_number": self._num_events}
        self._num_events += 1
        return event


def _is_delta(event: Mapping[str, Any]) -> bool:
    return isinstance(event.get("delta"), str)


def _kind_of(event: Mapping[str, Any]) -> str:
    places = [
        event.get(name) for name in ("type", "output_index", "content_index", "summary_index")
    ]
    return " ".join(map(str, places))


def _names_in(value: Any) -> Iterator[Any]:
    """Yield the values of `NAMES`, in the order in which they stand."""
    if isinstance(value, list):
        for each in value:
            yield from _names_in(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name in NAMES and isinstance(each, str | int):
                yield each
            else:
                yield from _names_in(each)


def _renamed(value: Any, names: Mapping[Any, Any]) -> Any:
    """Return JSON with the values of `NAMES` replaced."""
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: names.get(each, each)
        if name in NAMES and isinstance(each, str | int)
        else _renamed(each, names)
        for name, each in value.items()
    }


def _as_event(event: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s" % (event["type"].encode(), orjson.dumps(event))


def _events_of(answer: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = {**answer, "status": "in_progress", "output": [], "usage": None}
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(map(mapping, list_in(answer.get("output")))):
        parts = list_in(item.get("content"))
        at = {"output_index": index}
        yield "response.output_item.added", {**at, "item": {**item, "content": []}}
        for number, part in enumerate(map(mapping, parts)):
            if part.get("type") == "output_text":
                yield from _events_of_text(part, {**at, "item_id": item.get("id"), "content_index": number})  # fmt: skip
        yield "response.output_item.done", {**at, "item": item}
    yield "response.completed", {"response": answer}


def _events_of_text(part: Mapping[str, Any], at: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:  # fmt: skip
    text = part.get("text", "")
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    yield "response.output_text.delta", {**at, "delta": text, "logprobs": []}
    yield "response.output_text.done", {**at, "text": text, "logprobs": []}
    yield "response.content_part.done", {**at, "part": part}

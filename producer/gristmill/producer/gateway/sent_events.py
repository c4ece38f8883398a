"""Remember what a stream of the Responses API has sent, and make a whole response a stream of events.

The events of this API number themselves and name ids that each delivery makes anew. So a response that is computed
again cannot go on in a stream that has begun.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gristmill.producer.gateway.sent_text import Diverged
from gristmill.shared.answers import list_in, mapping


class SentEvents:
    """What one stream of the Responses API has sent.

    Attributes:
        is_behind: False: a new delivery never goes on where another one broke off.
    """

    is_behind = False

    def __init__(self) -> None:
        self._delivery = 0

    def pass_on(self, delivery: int, event: bytes) -> bytes | None:
        """Return an event.

        Raises:
            Diverged: An earlier delivery has sent events.
        """
        if self._delivery not in (0, delivery):
            raise Diverged
        self._delivery = delivery
        return event

    def rest_of(
        self, answer: Mapping[str, Any], *, shows_usage: bool
    ) -> Iterator[bytes]:  # the last event has the usage
        """Yield a whole response as events.

        Raises:
            Diverged: Events have been sent.
        """
        if self._delivery:
            raise Diverged
        for number, (kind, fields) in enumerate(_events_of(answer)):
            data = orjson.dumps({"type": kind, "sequence_number": number, **fields})
            yield b"event: " + kind.encode() + b"\ndata: " + data


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

"""Cut the answer of the stub engine into the chunks of a stream, one for each token, as vLLM sends them."""

import json
from collections.abc import Callable, Mapping
from typing import Any


class StubChunks:
    """The chunks of one answer.

    Args:
        answer: The whole answer of a chat or a completion.
        num_tokens: Number of its tokens, each a word.
        send: Takes each event, and `data: [DONE]` at the end.
    """

    def __init__(
        self, answer: Mapping[str, Any], num_tokens: int, send: Callable[[bytes], None]
    ) -> None:
        self._answer = answer
        self._num_tokens = num_tokens
        self._send = send
        self._num_sent = 0
        (choice,) = answer["choices"]
        self._is_chat = "message" in choice
        text = choice["message"]["content"] if self._is_chat else choice["text"]
        first, *others = text.split(" ")
        self._tokens = [first, *(f" {word}" for word in others)]

    def send_until(self, num_tokens: int) -> None:
        """Send the chunks of the tokens up to a number; the last one is followed by the usage."""
        if num_tokens and not self._num_sent and self._is_chat:
            self._send_choice({"delta": {"role": "assistant", "content": ""}})
        for number in range(self._num_sent, num_tokens):
            token = self._tokens[number]
            part = {"delta": {"content": token}} if self._is_chat else {"text": token}
            is_last = number + 1 == self._num_tokens
            self._send_choice(part | {"finish_reason": "length" if is_last else None})
            if is_last:
                self._send_event({"choices": [], "usage": self._answer["usage"]})
                self._send(b"data: [DONE]\n\n")
        self._num_sent = max(self._num_sent, num_tokens)

    def _send_choice(self, part: Mapping[str, Any]) -> None:
        self._send_event({"choices": [{"index": 0, **part}]})

    def _send_event(self, fields: Mapping[str, Any]) -> None:
        kind = self._answer["object"] + (".chunk" if self._is_chat else "")
        same = {name: self._answer[name] for name in ("id", "model", "created")}
        event = json.dumps({**same, "object": kind, **fields})
        self._send(f"data: {event}\n\n".encode())

"""The gateway keeps and compares the text of a stream with work that grows as the text does."""

from collections import Counter
from typing import Any

import orjson
import pytest

from gristmill.producer.gateway.sent_text import SentText

work = Counter[str]()


class CountingText(str):
    """A string that counts the characters which its operations copy or compare."""

    def _counted(self, result: str, num_chars: int) -> "CountingText":
        work["chars"] += num_chars
        return CountingText(result)

    def __add__(self, other: str) -> "CountingText":
        return self._counted(str(self) + str(other), len(self) + len(other))

    def __radd__(self, other: str) -> "CountingText":
        return self._counted(str(other) + str(self), len(self) + len(other))

    def __getitem__(self, at: Any) -> "CountingText":
        found = str.__getitem__(self, at)
        return self._counted(found, len(found))


def counting(value: Any) -> Any:
    """Return parsed JSON with such strings."""
    if isinstance(value, dict):
        return {name: counting(each) for name, each in value.items()}
    if isinstance(value, list):
        return list(map(counting, value))
    return CountingText(value) if isinstance(value, str) else value


def work_of(num_tokens: int) -> int:
    """Send a stream, then compute it again to its half; return the characters that were copied or compared."""
    work.clear()
    sent = SentText()
    for delivery, number in ((1, num_tokens), (2, num_tokens // 2)):
        for at in range(number):
            choice = {"index": 0, "delta": {"content": f"{at:05d}"}, "finish_reason": None}
            event = b"data: " + orjson.dumps({"id": "c", "created": 1, "choices": [choice]})
            passed = sent.pass_on(delivery, event)
            assert (passed is None) == (delivery == 2)
    return work["chars"]


def test_work_grows_as_the_text_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(data: bytes) -> Any:
        return counting(json_loads(data))

    json_loads = orjson.loads
    monkeypatch.setattr("gristmill.producer.gateway.sent_text.orjson.loads", loads)
    few, many = work_of(100), work_of(1000)
    assert 0 < many <= 10 * few

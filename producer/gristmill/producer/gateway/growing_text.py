"""A text that a stream has sent, and how much of a new delivery repeats it; chats, texts and responses use it."""

from collections.abc import Sequence
from io import StringIO


class Diverged(Exception):
    """The new answer differs from what was sent."""


class GrowingText:
    """A text that grows at its end. A string would be copied whole with each token.

    Attributes:
        num_chars: Its length.
    """

    def __init__(self) -> None:
        self._buffer = StringIO(newline="")
        self.num_chars = 0

    def append(self, text: str) -> None:
        """Add a text at the end."""
        self._buffer.seek(self.num_chars)
        self._buffer.write(text)
        self.num_chars += len(text)

    def repeated(self, text: str, at: int) -> int:
        """Return how many characters of a new text were sent before.

        Args:
            text: A piece of the new answer.
            at: Characters of the new answer before this piece.

        Raises:
            Diverged: The piece differs from what was sent.
        """
        num_chars = min(len(text), self.num_chars - at)
        self._buffer.seek(at)
        if text[:num_chars] != self._buffer.read(num_chars):
            raise Diverged
        return num_chars


def tokens_within(tokens: Sequence[str], num_chars: int) -> int:
    """Return how many of the first tokens fit into a number of characters; an empty token ends the count."""
    number = 0
    while number < len(tokens) and num_chars >= len(tokens[number]) > 0:
        num_chars -= len(tokens[number])
        number += 1
    return number

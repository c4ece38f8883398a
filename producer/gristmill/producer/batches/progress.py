"""How far a steward is with a batch: what the next one has to know to go on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import orjson


class Place(NamedTuple):
    """Where a line lies in the input, in bytes."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the output, written whole.

    Attributes:
        kind: Whether its rows are answers or errors.
        path: Where it lies in the storage.
        size: In bytes.
    """

    kind: Literal["output", "error"]
    path: str
    size: int

    def dump(self) -> bytes:
        """Return it as JSON."""
        return orjson.dumps(self)

    @classmethod
    def parse(cls, data: bytes) -> "Part":
        """Read what `dump` wrote."""
        return cls(**orjson.loads(data))


@dataclass(frozen=True, slots=True)
class Progress:
    """What is done of one batch.

    Attributes:
        line: Last line that was read.
        offset: Where the next one begins, in bytes.
        is_read: Whether the input is at its end.
        outstanding: Lines in the queue, or finished and not written yet -> where they lie (`Place`).
        skipped: Where the numbers of the lines lie that validation has given their row, or "".
        has_parts: Whether parts lie in the storage.
    """

    line: int = 0
    offset: int = 0
    is_read: bool = False
    outstanding: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    skipped: str = ""
    has_parts: bool = False

    def dump(self) -> bytes:
        """Return it as JSON."""
        places = {n: (start, size) for n, (start, size) in self.outstanding.items()}
        return orjson.dumps(replace(self, outstanding=places), option=orjson.OPT_NON_STR_KEYS)

    @classmethod
    def parse(cls, data: bytes) -> "Progress":
        """Read what `dump` wrote."""
        fields = orjson.loads(data)
        places = fields.pop("outstanding", {})
        return cls(**fields, outstanding={int(n): Place(*place) for n, place in places.items()})

"""Parts: the pieces in which the rows of a running batch lie in the storage."""

from dataclasses import dataclass
from typing import Literal

import orjson

RowKind = Literal["output", "error"]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the output that is in the storage as a whole.

    Attributes:
        kind: The file to which its rows belong.
        path: Its path in the storage.
        size: Its length in bytes.
    """

    kind: RowKind
    path: str
    size: int

    def dump(self) -> bytes:
        """Return it as JSON."""
        return orjson.dumps(self)

    @classmethod
    def parse(cls, data: bytes) -> "Part":
        """Read the JSON that `dump` returned."""
        return cls(**orjson.loads(data))


def parts_folder(batch: str) -> str:
    """Return the folder of a batch's parts; it is deleted after the batch has ended."""
    return f"batches/{batch}"


def results_folder(batch: str) -> str:
    """Return the folder of a batch's output and error file."""
    return f"results/{batch}"

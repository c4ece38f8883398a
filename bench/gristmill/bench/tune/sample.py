"""The load that is tuned for, as it was named: parent and trial read the same."""

from dataclasses import dataclass

from gristmill.bench.loads import LoadRequest, file_of, from_file, named

DEFAULT_REQUESTS = 512
"""Of a named load; a point that needs more begins again."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A named load or the lines of a file.

    Attributes:
        name: One of `SHAPES`, or a path.
        limit: Requests at most; None for all of a file.
        seed: Of a named load.
        scale: Of its lengths.
    """

    name: str
    limit: int | None = None
    seed: int = 0
    scale: float = 1.0

    def requests(self) -> list[LoadRequest]:
        """Read or make them.

        Raises:
            SettingsError: There is no such load.
            InvalidRequest: A line of the file is no request, or there is none.
        """
        if path := file_of(self.name):
            return from_file(path, self.limit)
        return named(self.name, self.limit or DEFAULT_REQUESTS, self.seed, self.scale)

"""The load of `--sample`.

The command and the engine's process both make it from this description.
"""

from dataclasses import dataclass

from gristmill.bench.loads import LoadRequest, file_of, from_file, named

DEFAULT_REQUESTS = 512
"""Requests generated per named load; a longer measurement repeats them."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """A named load or the lines of a file.

    Attributes:
        name: One of `SHAPES` in `loads.py`, or a path.
        limit: Largest number of requests; None for all of a file.
        seed: Seed of a named load.
        scale: Factor of its lengths.
    """

    name: str
    limit: int | None = None
    seed: int = 0
    scale: float = 1.0

    def requests(self) -> list[LoadRequest]:
        """Read the file or generate the named load.

        Raises:
            SettingsError: No load has this name.
            InvalidRequest: A line of the file is no request, or the file is empty.
        """
        if path := file_of(self.name):
            return from_file(path, self.limit)
        return named(self.name, self.limit or DEFAULT_REQUESTS, self.seed, self.scale)

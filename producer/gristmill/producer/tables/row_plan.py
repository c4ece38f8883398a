"""Remember on disk which rows ask the same as an earlier row; memory does not grow with the rows."""

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import orjson

from gristmill.shared.disk_errors import disk_errors
from gristmill.shared.errors import GristmillError

CACHE_KIB = 32 * 1024
"""Memory of the index of digests while it is built."""

_TABLES = """
CREATE TABLE first (digest BLOB PRIMARY KEY, row INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE copies (row INTEGER PRIMARY KEY, first INTEGER NOT NULL);
CREATE TABLE facts (facts BLOB NOT NULL);
"""


class PlanDraft:
    """A plan that is being made. It becomes a plan only when it is whole.

    Args:
        path: Path of the plan.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(path.name + ".draft")
        self._draft.unlink(missing_ok=True)
        with _plan_errors(self._draft):
            self._db = _connect(self._draft)
            self._db.executescript(_TABLES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()
        self._draft.unlink(missing_ok=True)

    def add(self, digests: Mapping[int, bytes]) -> int:
        """Note the digests of some requests, by row, and return how many of them are copies.

        Raises:
            GristmillError: The disk is full or fails.
        """
        first = self._earlier(list(digests.values()))
        new: list[tuple[bytes, int]] = []
        copies: list[tuple[int, int]] = []
        for row, digest in digests.items():
            if digest in first:
                copies.append((row, first[digest]))
            else:
                first[digest] = row
                new.append((digest, row))
        with _plan_errors(self._draft):
            self._db.executemany("INSERT INTO first VALUES (?, ?)", new)
            self._db.executemany("INSERT INTO copies VALUES (?, ?)", copies)
        return len(copies)

    def finish(self, facts: Mapping[str, Any]) -> "RowPlan":
        """Make the draft the plan.

        Args:
            facts: What the check of the rows has found, as JSON.

        Raises:
            GristmillError: The disk is full or fails.
        """
        with _plan_errors(self._draft):
            self._db.execute("DROP TABLE first")
            self._db.execute("CREATE INDEX copies_of ON copies (first)")
            self._db.execute("INSERT INTO facts VALUES (?)", (orjson.dumps(facts),))
            self._db.commit()
            self._db.close()
            _sync(self._draft)
            self._draft.replace(self._path)
        return RowPlan(self._path)

    def _earlier(self, digests: Sequence[bytes]) -> dict[bytes, int]:
        """Return those of some digests that an earlier row has, with this row."""
        found: dict[bytes, int] = {}
        for start in range(0, len(digests), 500):
            some = digests[start : start + 500]
            marks = ",".join("?" * len(some))
            query = f"SELECT digest, row FROM first WHERE digest IN ({marks})"  # noqa: S608  # only marks
            found.update(self._db.execute(query, some))
        return found


class RowPlan:
    """A finished plan.

    Args:
        path: Path of the plan.

    Attributes:
        facts: What the check of the rows has found.
        num_copies: Rows that ask the same as an earlier one.
    """

    def __init__(self, path: Path) -> None:
        # The thread that checks the rows may be another one than the one that submits them.
        uri = f"{path.absolute().as_uri()}?mode=ro"
        self._db = sqlite3.connect(uri, uri=True, check_same_thread=False)
        (raw,) = self._db.execute("SELECT facts FROM facts").fetchone()
        self.facts: dict[str, Any] = orjson.loads(raw)
        (self.num_copies,) = self._db.execute("SELECT count(*) FROM copies").fetchone()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def copies_between(self, first: int, last: int) -> dict[int, int]:
        """Return the copies among some rows, each with the row that runs for it."""
        if not self.num_copies:
            return {}
        query = "SELECT row, first FROM copies WHERE row BETWEEN ? AND ?"
        return dict(self._db.execute(query, (first, last)))

    def copies_of(self, row: int) -> list[int]:
        """Return the rows that ask the same as a row that runs, in their order."""
        if not self.num_copies:
            return []
        query = "SELECT row FROM copies WHERE first = ? ORDER BY row"
        return [copy for (copy,) in self._db.execute(query, (row,))]


def read_plan(path: Path) -> RowPlan | None:
    """Return a plan; None if there is none, or none that can be read."""
    if path.is_file():
        with suppress(sqlite3.Error, TypeError, ValueError):
            return RowPlan(path)
    return None


@contextmanager
def _plan_errors(path: Path) -> Iterator[None]:
    """Turn an error about the disk into one in words; SQLite has an error of its own for it."""
    remedy = "make room there, then repeat the command; it has submitted nothing"
    try:
        with disk_errors(path, remedy):
            yield
    except sqlite3.OperationalError as error:
        raise GristmillError(f"{path}: {error}; {remedy}") from None


def _connect(path: Path) -> sqlite3.Connection:
    """Open a database that need not survive a crash: it is made again then."""
    db = sqlite3.connect(path)
    for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE_KIB}"):
        db.execute(f"PRAGMA {pragma}")
    return db


def _sync(path: Path) -> None:
    with closing(path.open("rb")) as file:
        os.fsync(file.fileno())

"""The output file of one run: rows are appended as requests finish, each exactly once."""

import contextlib
import fcntl
import os
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from gristmill.producer.batches.rows import is_success, line_number
from gristmill.producer.batches.run import Run
from gristmill.shared.errors import InvalidRequest


@dataclass(slots=True)
class Written:
    """What an output file holds already.

    Attributes:
        finished: Element n is 1 if line n of the input has its row.
        num_finished: How many are 1.
        num_failed: How many of those rows carry no answer, or an error.
    """

    finished: bytearray
    num_finished: int = 0
    num_failed: int = 0


class Output:
    """An output file that this process alone appends to; each row is with the kernel at once.

    While it is unfinished, the file `<path>.run` beside it says what a resume has to know.

    Args:
        path: The file; made if it is not there.

    Raises:
        InvalidRequest: Another process appends to it, it cannot be opened, or it is no regular file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_new = not path.exists()
        if not (self._is_new or path.is_file()):
            message = f"{path} is no regular file, so nothing could be resumed; name one, or leave -o out for stdout"
            raise InvalidRequest(message)
        self._file = _locked(path)
        while not _is_at(path, self._file):  # the one before us has just taken its own away
            self._file.close()
            self._file = _locked(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        has_begun = os.fstat(self._file.fileno()).st_size or Run.beside(self._path).exists()
        if self._is_new and not has_begun:
            self._path.unlink(missing_ok=True)  # nothing is left behind that was not there before
        self._file.close()

    def begun_run(self, *, is_forced: bool) -> Run | None:
        """Return the run that this output is of, finished or not, or None to begin one.

        Args:
            is_forced: Begin one whatever is there.

        Raises:
            InvalidRequest: The file holds something that nobody can resume.
        """
        if is_forced:
            return None
        earlier = Run.read(self._path)
        if earlier is None and self._path.stat().st_size:
            message = f"{self._path} exists; name another output, or overwrite it with --force"
            raise InvalidRequest(message)
        return earlier

    def begin(self, run: Run) -> None:
        """Throw away what is there and note the run."""
        self._file.truncate(0)
        run.write(self._path)

    def append(self, row: bytes) -> None:
        """Append a row, line end included."""
        view = memoryview(row)
        while view:
            view = view[self._file.write(view) :]

    def keep_whole_rows(self, run: str, num_lines: int) -> Written:
        """Read the rows of an interrupted run; a torn last one is cut off.

        Args:
            run: Whose rows they must be.
            num_lines: Lines of the input.

        Raises:
            InvalidRequest: A row is of another run, or no row.
        """
        written = Written(bytearray(num_lines + 1))
        end = 0
        with self._path.open("rb") as stream:
            for number, row in enumerate(stream, 1):
                if not row.endswith(b"\n"):
                    break
                self._note(written, number, row, run)
                end += len(row)
        os.truncate(self._file.fileno(), end)
        return written

    def _note(self, written: Written, number: int, row: bytes, run: str) -> None:
        try:
            fields = orjson.loads(row)
            line = line_number(fields, run)
            has_failed = not is_success(fields)
            written.num_finished += not written.finished[line]
            written.finished[line] = 1
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise InvalidRequest(
                f"{self._path} line {number:,} is no row of run {run} ({error}); move the file away,"
                " or start anew with --force"
            ) from None
        written.num_failed += has_failed


def check_apart(source: str, *outputs: Path) -> None:
    """Make sure that no output is the input itself, by whatever name.

    Args:
        source: A path; anything else is no output.
        outputs: What is about to be written.

    Raises:
        InvalidRequest: One is.
    """
    for output in outputs:
        with contextlib.suppress(OSError):  # one of them is not there
            if output.samefile(source):
                raise InvalidRequest(
                    f"{output} is the input itself, which it would overwrite; name another output"
                )


def _locked(path: Path) -> FileIO:
    try:
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise InvalidRequest(f"cannot write {path}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        message = f"another process is writing {path}; wait for it, or name another output"
        raise InvalidRequest(message) from None
    return file


def _is_at(path: Path, file: FileIO) -> bool:
    """Whether an open file is the one that stands at a path now."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False

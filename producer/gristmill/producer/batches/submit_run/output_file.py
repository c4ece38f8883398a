"""The output file of a run, which gets each row once, as the requests finish."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Self

import orjson

from gristmill.producer.batches.rows import BadLine, failure_in_words, is_success, line_number
from gristmill.producer.batches.submit_run.run_record import RunRecord
from gristmill.shared.answers import CUT, finish_reason, mapping
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import Request


@dataclass(slots=True)
class WrittenRows:
    """The rows that an output file has already.

    Attributes:
        finished: Element n is 1 if line n of the input has its row.
        num_finished: Lines that have their row.
        num_failed: Rows among them that have an error, or no answer.
        num_cut: Answers among them that reached their limit of tokens.
        example: The first of those in words; "" if there is none.
    """

    finished: bytearray
    num_finished: int = 0
    num_failed: int = 0
    num_cut: int = 0
    example: str = ""


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of a row that an output got.

    Attributes:
        num_copies: Further lines that have got the same answer.
        failure: The line and why it failed, in words; None if it did not fail.
        again: Returns the request that the line needs before it has its row, because this answer was cut; it takes
            the prompt and output tokens that the model can have, 0 if that is not known. None if the row is written.
    """

    num_copies: int = 0
    failure: str | None = None
    again: Callable[[int], Request | BadLine] | None = None


class OutputFile:
    """An output file, locked so that only this process appends to it. Rows are not buffered.

    The file `<path>.run` holds the `RunRecord` that a resume needs.

    Args:
        path: Path of the file; it is created if it does not exist.

    Attributes:
        keeps_results: True: the results of written rows stay in Redis, where others may read them.

    Raises:
        InvalidRequest: Another process appends to the file, it cannot be opened, or it is not a
            regular file.
    """

    keeps_results = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_new = not path.exists()
        if not (self._is_new or path.is_file()):
            message = f"{path} is no regular file, so nothing could be resumed; name one, or leave -o out for stdout"
            raise InvalidRequest(message)
        self._file = _locked(path)
        while not _is_at(path, self._file):  # the process before us has just deleted the file
            self._file.close()
            self._file = _locked(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        has_begun = os.fstat(self._file.fileno()).st_size or RunRecord.beside(self._path).is_file()
        if self._is_new and not has_begun:
            self._path.unlink(missing_ok=True)  # leave no file that did not exist before
        self._file.close()

    def begun_run(self, *, is_forced: bool) -> RunRecord | None:
        """Return the run to which this output belongs, finished or not; None to begin a new one.

        Args:
            is_forced: Begin a new run even if the file has rows.

        Raises:
            InvalidRequest: The file is not empty and belongs to no run.
        """
        return earlier_run(self._path, is_forced=is_forced)

    def begin(self, run: RunRecord) -> None:
        """Empty the file and write the record of a new run."""
        self._file.truncate(0)
        run.write(self._path)

    def forget_run(self) -> None:
        """Delete the record of a run that has no rows, so that nothing of the run is left."""
        if not os.fstat(self._file.fileno()).st_size:
            RunRecord.beside(self._path).unlink(missing_ok=True)

    def finish(self, totals: Mapping[str, Any]) -> None:
        """Do nothing: the rows are there already. `TableOutput` merges its rows here."""

    def append(self, row: bytes) -> None:
        """Append a row that ends with its line end."""
        view = memoryview(row)
        while view:
            view = view[self._file.write(view) :]

    def sync(self) -> None:
        """Make the rows so far survive a power cut."""
        os.fsync(self._file.fileno())

    def keep_whole_rows(self, run: str, num_lines: int) -> WrittenRows:
        """Read the rows of an interrupted run and cut off an incomplete last row.

        Args:
            run: Name of the run.
            num_lines: Lines of the input.

        Raises:
            InvalidRequest: A row belongs to another run, or is no row.
        """
        written = WrittenRows(bytearray(num_lines + 1))
        end = 0
        with self._path.open("rb") as stream:
            for number, row in enumerate(stream, 1):
                if not row.endswith(b"\n"):
                    break
                self._note(written, number, row, run)
                end += len(row)
        os.truncate(self._file.fileno(), end)
        return written

    def _note(self, written: WrittenRows, number: int, row: bytes, run: str) -> None:
        try:
            fields = orjson.loads(row)
            line = line_number(fields, run)
            has_failed = not is_success(fields)
            written.num_finished += not written.finished[line]
            written.finished[line] = 1
            if has_failed and not written.example:
                written.example = failure_of_line(fields, run)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise InvalidRequest(
                f"{self._path} line {number:,} is no row of run {run} ({error}); move the file away,"
                " or begin a new run with --force"
            ) from None
        written.num_failed += has_failed
        written.num_cut += finish_reason(mapping(fields["response"]).get("body")) == CUT


def failure_of_line(row: dict[str, Any], run: str, noun: str = "line") -> str:
    """Return a failed row in words: its line, its custom_id and the cause.

    Args:
        row: A parsed row.
        run: Name of the run.
        noun: What the input has: lines, or rows of a table.

    Raises:
        ValueError: The row belongs to another run, or is no row.
    """
    line, custom_id = line_number(row, run), row["custom_id"]
    named = f" (custom_id {custom_id})" if custom_id not in (None, str(line)) else ""
    return f"{noun} {line:,}{named}: {failure_in_words(row)}"


def earlier_run(output: Path, *, is_forced: bool) -> RunRecord | None:
    """Return the run to which an output belongs, finished or not; None to begin a new one.

    Args:
        output: Path of the output.
        is_forced: Begin a new run even if there is an output.

    Raises:
        InvalidRequest: The output is not empty and belongs to no run.
    """
    if is_forced:
        return None
    earlier = RunRecord.read(output)
    if earlier is None and output.exists() and output.stat().st_size:
        message = f"{output} exists; name another output, or overwrite it with --force"
        raise InvalidRequest(message)
    return earlier


def lock_beside(folder: Path, output: Path) -> FileIO:
    """Make a folder beside an output and lock it, so that only this process writes the output.

    Args:
        folder: Folder with the work of the run.
        output: Path of the output, for messages.

    Returns:
        The lock; it ends when the file is closed.

    Raises:
        InvalidRequest: Another process holds the lock, or the folder cannot be written.
    """
    path = folder / "lock"
    while True:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise _unwritable(output, error) from None
        lock = _locked(path, output)
        if _is_at(path, lock):
            return lock
        lock.close()  # the process before us has just deleted the folder


def check_apart(source: str, *outputs: Path) -> None:
    """Refuse an output that is the input itself, also under another name, or lies in it.

    Args:
        source: Path of the input, or of its folder; a URL or `-` is never an output.
        outputs: Paths that are about to be written.

    Raises:
        InvalidRequest: One of them is the input, or lies in it.
    """
    for output in outputs:
        if Path(source).is_dir() and output.resolve().is_relative_to(Path(source).resolve()):
            raise InvalidRequest(
                f"{output} lies in the input {source}, so a resume would read it, too; name an output elsewhere"
            )
        with contextlib.suppress(OSError):  # one of the two does not exist
            if output.samefile(source):
                raise InvalidRequest(
                    f"{output} is the input itself, which it would overwrite; name another output"
                )


def _locked(path: Path, output: Path | None = None) -> FileIO:
    output = output or path
    try:
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise _unwritable(output, error) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        message = f"another process is writing {output}; wait for it, or name another output"
        raise InvalidRequest(message) from None
    return file


def _unwritable(output: Path, error: OSError) -> InvalidRequest:
    return InvalidRequest(f"cannot write {output}: {error.strerror}; name another output")


def _is_at(path: Path, file: FileIO) -> bool:
    """Return True if a path still leads to an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False

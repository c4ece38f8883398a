"""Say in words why a file could not be read or written; `cli.py` and the commands of the producer call it."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gristmill.shared.errors import GristmillError, InvalidRequest

_DISK_FAILS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE}
"""Errors of the disk or of the process; another path on the same disk would fail too."""

_PATH_IS_WRONG = {
    errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST,
    errno.ENAMETOOLONG, errno.ELOOP,
}  # fmt: skip
"""Errors that another path avoids."""


def is_disk_error(error: BaseException) -> bool:
    """Return True for an error about a file or a disk; False for one about a connection or a pipe."""
    return isinstance(error, OSError) and error.errno in _DISK_FAILS | _PATH_IS_WRONG


def disk_error_in_words(error: OSError, path: object, remedy: str = "") -> GristmillError:
    """Return an error with the path, the cause and the remedy.

    Args:
        error: An error for which `is_disk_error` is true.
        path: What was read or written, if the error does not name a file.
        remedy: What to do; "" for none.

    Returns:
        `InvalidRequest` if another path avoids the error, else `GristmillError`.
    """
    kind = InvalidRequest if error.errno in _PATH_IS_WRONG else GristmillError
    name = error.filename2 or error.filename
    where = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else path
    return kind(f"{where}: {error.strerror}" + (f"; {remedy}" if remedy else ""))


@contextmanager
def disk_errors(path: object, remedy: str = "") -> Iterator[None]:
    """Turn errors about files into errors in words; see `disk_error_in_words`."""
    try:
        yield
    except OSError as error:
        if not is_disk_error(error):
            raise
        raise disk_error_in_words(error, path, remedy) from None


def drop_stdout() -> bool:
    """Discard what stdout still buffers if it cannot be written, and return True if so.

    Python writes the buffer again when it exits, and would end with code 120.
    """
    if sys.stdout is None:
        return False
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False

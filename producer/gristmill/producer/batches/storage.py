"""The storage of files: a folder, or a URL that fsspec knows (S3, GCS, Azure, ...).

Each object has a unique name and never changes once it is written. Records name only objects
that are complete. So a reader that finds a name in a record sees the whole object, on any storage.
"""

from collections.abc import Collection, Iterator
from io import BufferedReader
from typing import IO, Any, BinaryIO, cast
from uuid import uuid4

import fsspec
from fsspec.implementations.local import LocalFileSystem

from gristmill.shared.errors import SettingsError
from gristmill.shared.install import install_hint

BLOCK_BYTES = 8 * 2**20
"""Bytes of one transfer; S3 takes parts of 5 MiB or more."""

COPY_BYTES = 2**20
"""Bytes that a copy holds in memory at a time."""

REACH_STORAGE = (
    "set GRISTMILL_STORAGE_URL (or --storage-url) to the storage of gateway and stewards, and run the command"
    " where it can be reached"
)
"""Remedy for a storage that is not the one that the queue's records name."""


def unusable(url: str, error: Exception) -> str:
    """Return the message for an operator whose storage failed."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return (
        f"cannot use the storage {url} ({reason}); check GRISTMILL_STORAGE_URL (or --storage-url)"
        " and the right to write there; for S3 also AWS_* and FSSPEC_S3_ENDPOINT_URL"
    )


class Storage:
    """Objects under one root.

    Args:
        url: A folder, or a URL such as `s3://bucket/folder`. Credentials come from the store's own
            variables (`AWS_ACCESS_KEY_ID`, ...) or fsspec's (`FSSPEC_S3_ENDPOINT_URL`, ...).

    Attributes:
        buffer_bytes: Bytes that an object holds in memory while it is written.

    Raises:
        SettingsError: No installed package knows such a URL.
    """

    def __init__(self, url: str) -> None:
        try:
            self._fs, self._root = fsspec.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise SettingsError(
                f"GRISTMILL_STORAGE_URL {url!r} cannot be used: {error}; for S3 {install_hint('s3')}"
            ) from None
        self.url = url
        self._is_local = isinstance(self._fs, LocalFileSystem)
        self.buffer_bytes = 0 if self._is_local else BLOCK_BYTES

    def check(self) -> None:
        """Write and delete a small object, to find a wrong setting early.

        Raises:
            SettingsError: The storage cannot be written.
        """
        path = self.new_path("files", "probe")
        try:
            self.write(path, b"")
            self.delete(path)
        except Exception as error:  # noqa: BLE001  # each kind of storage has its own
            raise SettingsError(unusable(self.url, error)) from None

    def check_existing(self) -> None:
        """Check a storage that must have objects already: its folder exists, and it can be written.

        Raises:
            SettingsError: The folder is absent on this machine, or the storage cannot be written.
        """
        if self._is_local and not self._fs.isdir(self._root):
            raise SettingsError(
                f"the storage {self.url} is absent on this machine; {REACH_STORAGE}"
            )
        self.check()

    @staticmethod
    def new_path(folder: str, name: str) -> str:
        """Return a new, unique path in a folder."""
        return f"{folder}/{name}.{uuid4().hex}"

    def open(self, path: str, offset: int = 0) -> BinaryIO:
        """Open an object for reading.

        Args:
            path: Path of the object below the root.
            offset: Byte at which the reader begins.

        Raises:
            FileNotFoundError: There is no such object.
        """
        stream = self._open(path, "rb")
        stream.seek(offset)
        return cast(BinaryIO, BufferedReader(cast(Any, stream), COPY_BYTES))

    def create(self, path: str) -> BinaryIO:
        """Open a new object for writing; readers find it once it is closed."""
        if self._is_local:
            self._fs.makedirs(
                self._fs._parent(self._full(path)), exist_ok=True
            )  # fsspec has no public name for it
        return cast(BinaryIO, self._open(path, "wb"))

    def chunks(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield an object's bytes from an offset on, in pieces of `COPY_BYTES`."""
        with self.open(path, offset) as stream:
            while chunk := stream.read(COPY_BYTES):
                yield chunk

    def write(self, path: str, data: bytes) -> None:
        """Write a small object."""
        try:
            with self.create(path) as stream:
                stream.write(data)
        except OSError:
            self.delete(path)
            raise

    def exists(self, path: str) -> bool:
        """Return True if there is such an object."""
        return bool(self._fs.exists(self._full(path)))

    def delete(self, path: str) -> None:
        """Delete an object; a missing one is no error."""
        try:
            self._fs.rm_file(self._full(path))
        except FileNotFoundError:
            return

    def delete_folder(self, folder: str) -> None:
        """Delete all objects of a folder; a missing folder is no error."""
        try:
            self._fs.rm(self._full(folder), recursive=True)
        except FileNotFoundError:
            return

    def paths(self) -> Iterator[str]:
        """Yield the path of every object, those of other queues too."""
        root = self._full("").rstrip("/")
        for folder, _, names in self._fs.walk(root):
            below = f"{folder}".rstrip("/")[len(root) :].lstrip("/")
            yield from (f"{below}/{name}" if below else name for name in names)

    def keep_only(self, folder: str, paths: Collection[str]) -> None:
        """Delete all objects of a folder except these."""
        prefix = self._full(folder)
        try:
            found = self._fs.ls(prefix, detail=False)
        except FileNotFoundError:
            return
        for full in found:
            name = full.rpartition("/")[2]
            if f"{folder}/{name}" not in paths:
                self.delete(f"{folder}/{name}")

    def _full(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def _open(self, path: str, mode: str) -> IO[bytes]:
        if self._is_local:
            return cast(IO[bytes], self._fs.open(self._full(path), mode))
        return cast(IO[bytes], self._fs.open(self._full(path), mode, block_size=BLOCK_BYTES))

"""Find the files of an input: paths, globs, folders, and URLs that fsspec knows."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any

import fsspec
import orjson
import pyarrow as pa
from fsspec.core import url_to_fs
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.local import LocalFileSystem

from gristmill.producer.batches.submit_run import check_apart, fingerprint
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.install import install_hint
from gristmill.shared.one_line import one_line, shown

KINDS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv",
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
"""Extension -> format of a file."""

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
"""Second extension of a compressed JSONL or CSV file -> its compression."""

_HTTP_FACTS = ("size", "ETag", "Content-MD5", "Digest", "Last-Modified")
"""What a web server tells about a version of a file; many tell only some of them."""

_TEXTS = ("jsonl", "csv", "tsv")


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of an input.

    Attributes:
        filesystem: File system of fsspec that has it.
        path: Its path there.
        name: Its name in messages.
        kind: jsonl, csv, tsv, parquet or arrow.
        compression: gzip or zstd; None for none.
    """

    filesystem: Any
    path: str
    name: str
    kind: str
    compression: str | None = None

    @property
    def is_local(self) -> bool:
        """True if it lies on this machine."""
        return isinstance(self.filesystem, LocalFileSystem)

    @property
    def row_noun(self) -> str:
        """Name of a row in messages; the rows of CSV are counted without the header."""
        return "data row" if self.kind in ("csv", "tsv") else "row"

    def fingerprint(self) -> tuple[int, str]:
        """Return its size and a digest: of its bytes, or of what its storage tells about a remote file."""
        if self.is_local:
            return fingerprint(Path(self.path))
        return int(self.filesystem.size(self.path) or 0), self.version()

    def version(self) -> str:
        """Return a text that changes when the file is written, without reading it."""
        self.filesystem.invalidate_cache()
        if not isinstance(self.filesystem, HTTPFileSystem):
            return str(self.filesystem.ukey(self.path))
        facts = self.filesystem.info(self.path)  # its ukey is a digest of the URL alone
        return orjson.dumps({name: facts.get(name) for name in _HTTP_FACTS}).decode()

    @contextmanager
    def open(self) -> Iterator[Any]:
        """Open it as a file of pyarrow, decompressed."""
        with self._opened() as raw:
            if self.compression is None:
                yield raw
                return
            with pa.CompressedInputStream(raw, self.compression) as stream:
                yield stream

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        if self.is_local:
            with pa.OSFile(self.path) as raw:
                yield raw
            return
        with self.filesystem.open(self.path, "rb") as remote, pa.PythonFile(remote, "r") as raw:
            yield raw


def find_files(sources: Sequence[str]) -> list[TableFile]:
    """Return the files of an input, in the order of the sources; those of a glob or a folder by name.

    Args:
        sources: Paths, globs, folders and URLs, such as `hf://datasets/OWNER/NAME/data/*.parquet`.

    Raises:
        InvalidRequest: A source names no file, or files of different formats.
    """
    files = [file for source in sources for file in _files_of(source)]
    kinds = {file.kind: file.name for file in files}
    if len(kinds) > 1:
        (one, first), (other, second) = list(kinds.items())[:2]
        raise InvalidRequest(
            f"{first} is {one} and {second} is {other}; name files of one format, for example with a glob"
        )
    return files


def check_files_apart(files: Sequence[TableFile], output: Path) -> None:
    """Refuse an output that a glob has found, also under another name, or whose parts it has found.

    Args:
        files: Files of the input.
        output: Path that is about to be written.

    Raises:
        InvalidRequest: A file is the output, or lies in its folder of parts.
    """
    parts = output.with_name(output.name + ".parts").resolve()
    for file in files:
        if not file.is_local:
            continue
        check_apart(file.path, output)
        if Path(file.path).resolve().is_relative_to(parts):
            raise InvalidRequest(
                f"{file.name} belongs to the unfinished output {output}, and the input has it, too; name the input"
                " so that it leaves out the output"
            )


def combined_fingerprint(files: Sequence[TableFile]) -> tuple[int, str]:
    """Return the bytes of all files and one digest."""
    prints = [file.fingerprint() for file in files]
    if len(prints) == 1:
        return prints[0]
    digest = hashlib.blake2b("\n".join(digest for _, digest in prints).encode()).hexdigest()
    return sum(size for size, _ in prints), digest


def _files_of(source: str) -> list[TableFile]:
    filesystem, path = _resolved(source)
    try:
        paths = _paths_of(filesystem, path)
    except Exception as error:  # file systems raise errors of their own libraries
        raise InvalidRequest(
            f"cannot look up {source!r}: {one_line(str(error) or type(error).__name__, 300)}; check name and login"
        ) from error
    if not paths:
        raise InvalidRequest(
            f"no file {source!r}; name a file, a glob in quotes, a folder or a URL"
        )
    return [_file(filesystem, each, source) for each in paths]


def _resolved(source: str) -> tuple[Any, str]:
    try:
        filesystem, path = url_to_fs(source)
    except ImportError as error:
        scheme = source.partition("://")[0]
        extra = {"s3": "s3", "hf": "tables"}.get(scheme)
        how = install_hint(extra) if extra else "install the package that it names"
        raise InvalidRequest(
            f"cannot read {scheme}:// here: {one_line(str(error))}; {how}"
        ) from None
    except ValueError as error:
        known = ", ".join(sorted(fsspec.available_protocols())[:40])
        raise InvalidRequest(f"cannot read {shown(source)}: {error}; use one of {known}") from None
    return filesystem, str(path)


def _paths_of(filesystem: Any, path: str) -> list[str]:
    if filesystem.isfile(path):
        return [path]
    if has_magic(path):
        return sorted(found for found in filesystem.glob(path) if filesystem.isfile(found))
    if not filesystem.isdir(path):
        return []
    return sorted(found for found in filesystem.find(path) if _format_of(found)[0] is not None)


def _file(filesystem: Any, path: str, source: str) -> TableFile:
    is_local = isinstance(filesystem, LocalFileSystem)
    name = os.path.relpath(path) if is_local else str(filesystem.unstrip_protocol(path))
    if is_local and name.startswith(".."):
        name = path
    kind, compression = _format_of(path)
    if kind is None or (compression and kind not in _TEXTS):
        known = " ".join(KINDS) + ", and .gz or .zst after those of JSONL and CSV"
        raise InvalidRequest(
            f"{name}: the format is not known by its extension; use one of {known}"
        )
    return TableFile(filesystem, path, name, kind, compression)


def _format_of(path: str) -> tuple[str | None, str | None]:
    """Return the format and the compression that the extensions of a path tell."""
    stem, extension = os.path.splitext(path.lower())  # noqa: PTH122  # a URL is no Path
    compression = COMPRESSIONS.get(extension)
    if compression:
        extension = os.path.splitext(stem)[1]  # noqa: PTH122
    return KINDS.get(extension), compression

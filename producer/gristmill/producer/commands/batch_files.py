"""Copy the input of a batch into its upload, and write the rows of a batch; `BatchSession` calls it."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec

from gristmill.producer.batches.storage import COPY_BYTES
from gristmill.producer.batches.upload import Upload
from gristmill.producer.commands.session import stdin_bytes, stdout_bytes
from gristmill.producer.commands.table_options import TableArguments
from gristmill.shared.cli import say
from gristmill.shared.disk_errors import disk_errors
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.file_format import check_start

LINES_A_WRITE = 1_000
"""Lines of a table that are written together."""


async def write_rows(
    coming: Coroutine[Any, Any, AsyncIterator[bytes]], batch: str, output: Path | None
) -> None:
    """Write rows; `batch` is what commands in messages need: the id of the batch, and its queue."""
    rows = await coming
    first = await anext(rows, b"")
    if not first:
        say(
            f"{batch.split(maxsplit=1)[0]} has no rows; see its status: gristmill batch show {batch}"
        )
        return
    remedy = f"correct this, then write the rows again: gristmill batch results {batch}"
    with (
        disk_errors(output or "stdout", remedy),
        output.open("wb") if output else nullcontext(stdout_bytes()) as target,
    ):
        target.write(first)
        target.flush()
        async for chunk in rows:
            target.write(chunk)
            target.flush()


def batch_copy(
    source: str, table: TableArguments, endpoint: str | None
) -> Callable[[Upload], bytes]:
    """Return what copies the input of a batch into its upload and returns the first line.

    Args:
        source: Path or URL; for a table also a glob or a folder.
        table: Options of a table.
        endpoint: Endpoint of every line; None for that of the first line, or for chat.

    Raises:
        click.UsageError: An option of a table has no effect on a batch.
        InvalidRequest: The table cannot be read, or does not fit the options.
    """
    if not table.has_prompt():
        return partial(copy_input, source)
    table.refuse(("dedupe", "rename", "parse"), "is for gristmill submit; leave it out")
    from gristmill.producer.tables.batch_lines import batch_lines
    from gristmill.producer.tables.table import Table
    from gristmill.producer.tables.table_files import find_files

    rows = Table(find_files([source]), has_types=False)
    return partial(_write_lines, batch_lines(rows, table.spec(endpoint)))


def _write_lines(lines: Iterator[bytes], upload: Upload) -> bytes:
    """Write lines in large pieces, and return the first one."""
    first = b""
    while piece := list(islice(lines, LINES_A_WRITE)):
        first = first or piece[0]
        upload.write(b"".join(piece))
    if not first:
        raise InvalidRequest("the table has no rows to run; name an input with rows")
    return first.rstrip(b"\n")


def copy_input(source: str, upload: Upload) -> bytes:
    """Copy a file, a URL or stdin into the upload, and return its first line."""
    try:
        opened = stdin_bytes() if source == "-" else fsspec.open(source, "rb").open()
    except (OSError, ValueError, ImportError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidRequest(
            f"cannot read {source!r} ({reason}); name a JSONL file or its URL"
        ) from None
    with opened as stream:
        first = b""
        while chunk := stream.read(COPY_BYTES):
            if not first:
                first = chunk
                check_start(first, repr(source))
            upload.write(chunk)
    return first.split(b"\n", 1)[0].removeprefix(b"\xef\xbb\xbf").rstrip(b"\r")

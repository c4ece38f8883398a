"""Copy the input of a batch into its upload, and write the rows of a batch; `BatchSession` calls it."""

from collections.abc import AsyncIterator, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fsspec

from gristmill.producer.batches.storage import COPY_BYTES
from gristmill.producer.batches.upload import Upload
from gristmill.producer.commands.session import stdin_bytes, stdout_bytes
from gristmill.shared.cli import say
from gristmill.shared.disk_errors import disk_errors
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.file_format import check_start


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

"""The settings of files and batches, shared by the gateway, the steward and `gristmill batch`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from gristmill.shared.settings import QueueSettings


class BatchSettings(QueueSettings):
    """Storage, limits and TTLs of files and batches."""

    storage_url: Annotated[
        str,
        Field(
            description="storage of files and results: a folder, or a URL that fsspec knows, such as `s3://bucket/folder`"
        ),
    ] = str(Path.home() / ".local/share/gristmill")
    max_file_bytes: Annotated[
        int, Field(ge=1024, description="largest uploaded file; a larger one is refused")
    ] = 16 * 2**30
    max_batch_requests: Annotated[int, Field(ge=1, description="most lines of one batch file")] = (
        5_000_000
    )
    check_bodies: Annotated[
        bool,
        Field(
            description="whether stewards check the bodies of strict batches against the JSON Schemas that workers publish"
        ),
    ] = True
    batch_window_requests: Annotated[
        int, Field(ge=16, le=10_000, description="most requests of one batch in Redis at a time")
    ] = 8192
    batch_window_bytes: Annotated[
        int, Field(ge=2**20, description="most bytes of one batch's requests in Redis at a time")
    ] = 64 * 2**20
    file_ttl_s: Annotated[
        int,
        Field(
            ge=3600,
            description="time after which a file is deleted, unless it has an expiry of its own",
        ),
    ] = 30 * 24 * 3600
    batch_ttl_s: Annotated[
        int, Field(ge=3600, description="time for which a batch is listed after its end")
    ] = 30 * 24 * 3600

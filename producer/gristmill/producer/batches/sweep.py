"""Delete what has had its time."""

import structlog

from gristmill.producer.batches.service import Batches

log = structlog.get_logger()

FILES_A_SWEEP = 500


async def sweep(batches: Batches) -> int:
    """Delete expired files, at most `FILES_A_SWEEP`; returns how many.

    Batches need none: their records have a TTL, and lists drop what is gone.
    """
    expired = await batches.registry.expired_files(FILES_A_SWEEP)
    for file in expired:
        if await batches.files.reader_of(file):
            continue
        await batches.files.remove(file)
        log.info("file.expired", file=file.id, tenant=file.tenant, bytes=file.bytes)
    return len(expired)

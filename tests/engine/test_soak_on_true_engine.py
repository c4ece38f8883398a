"""Test scenario 22 on a real engine; `make test-faults` runs 5,000 requests."""

import os
from pathlib import Path
from uuid import uuid4

import pytest
from soak import check_soak
from workers import TRUE

from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue

NUM_REQUESTS = int(os.environ.get("GRISTMILL_SOAK_ENGINE_REQUESTS", "1000"))


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_neither_processes_nor_redis_grow(
    redis_url: str, tmp_path: Path, argv: list[str]
) -> None:
    redis = connect(redis_url)
    queue = Queue(redis, f"test-{uuid4().hex[:12]}")
    await check_soak(
        TRUE, ["--", *argv], redis_url, queue, tmp_path, NUM_REQUESTS, "tiny", OMP_NUM_THREADS="1"
    )
    await redis.aclose()

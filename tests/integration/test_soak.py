"""Scenario 22 and 49: after many requests neither a process nor Redis has grown; `make test-faults` runs 100,000."""

import os
from pathlib import Path
from uuid import uuid4

import pytest
from soak import check_soak
from workers import STUB

from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue

NUM_REQUESTS = int(os.environ.get("GRISTMILL_SOAK_REQUESTS", "10000"))


@pytest.mark.timeout(600)
async def test_neither_processes_nor_redis_grow(redis_url: str, tmp_path: Path) -> None:
    redis = connect(redis_url)
    queue = Queue(redis, f"test-{uuid4().hex[:12]}")
    await check_soak(STUB, (), redis_url, queue, tmp_path, NUM_REQUESTS, "stub")
    await redis.aclose()

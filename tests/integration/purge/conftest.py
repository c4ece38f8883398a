"""What the tests of the purges share: a queue with two tenants that have something of every kind."""

from pathlib import Path

import pytest
from batches import open_batches

from gristmill.producer.batches.batch_service import Batches
from gristmill.shared.queue import Queue


@pytest.fixture
def batches(queue: Queue, tmp_path: Path) -> Batches:
    return open_batches(queue, tmp_path / "storage")

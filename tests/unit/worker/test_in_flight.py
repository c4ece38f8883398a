"""Test how many suspects a worker may still claim."""

import pytest

from gristmill.shared.connection import connect
from gristmill.shared.fleet_cache import FleetCache
from gristmill.shared.operations import Claim, SuspectRoom
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed, Record
from gristmill.worker.engine_load import EngineLoad
from gristmill.worker.event_buffers import EventBuffers
from gristmill.worker.in_flight import InFlight

RECORD = Record.parse(b"1|0|0|default|normal|d||0|0|3||/v1/completions|||\n\n{}")


@pytest.mark.parametrize(
    ("crashes", "width", "expected"),
    [
        ([], 1, SuspectRoom(1, False)),
        ([0, 0], 4, SuspectRoom(4, False)),
        ([1, 0, 1], 4, SuspectRoom(2, True)),
        ([1], 1, SuspectRoom(0, True)),
        ([2], 4, SuspectRoom(0, True)),  # it runs alone
        ([], 0, SuspectRoom(0, True)),  # nor a suspect element of the inbox
    ],
)
def test_room_for_suspects(crashes: list[int], width: int, expected: SuspectRoom) -> None:
    queue = Queue(connect("redis://127.0.0.1:1"))
    events = EventBuffers(max_stream_bytes=1024)
    in_flight = InFlight(queue, EngineLoad(), FleetCache(queue).answers, events)
    claimed = [Claimed(f"r{i}", 1, 1, number, RECORD) for i, number in enumerate(crashes)]
    in_flight.add(Claim(0, None, [], claimed), "w")
    assert in_flight.suspect_room(width) == expected

"""Whoever logs never waits and never fails, whatever the sink does."""

import os
import threading
from pathlib import Path

import orjson

from gristmill.shared.log import MAX_LINES, LineWriter


def test_lines_arrive_in_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as sink:
        writer = LineWriter(sink.fileno())
        for number in range(1000):
            writer.write(f"{number}\n")
        writer.drain()
    assert (tmp_path / "log").read_text().split() == [str(number) for number in range(1000)]


def test_sink_that_nobody_reads_holds_nobody_up_and_what_it_missed_is_counted() -> None:
    reader, sink = os.pipe()
    writer = LineWriter(sink)
    number = 3 * MAX_LINES
    for _ in range(number):
        writer.write("x" * 99 + "\n")
    received = bytearray()

    def read() -> None:
        while data := os.read(reader, 1 << 20):
            received.extend(data)

    reading = threading.Thread(target=read)
    reading.start()
    writer.drain()
    writer.write("the last\n")
    writer.drain()
    os.close(sink)
    reading.join()
    os.close(reader)
    lines = received.decode().splitlines()
    notices = [orjson.loads(line) for line in lines if line.startswith("{")]
    num_written = sum(line == "x" * 99 for line in lines)
    assert {notice["event"] for notice in notices} == {"log.dropped"}
    assert num_written + sum(notice["num_lines"] for notice in notices) == number
    assert MAX_LINES <= num_written < number
    assert lines[-1] == "the last"


def test_full_disk_fails_nobody_and_lines_come_again_when_it_is_not(tmp_path: Path) -> None:
    sink = os.open("/dev/full", os.O_WRONLY)
    writer = LineWriter(sink)
    for _ in range(5):
        writer.write("lost\n")
    writer.drain()
    with (tmp_path / "log").open("wb") as disk:
        os.dup2(disk.fileno(), sink)
    writer.write("kept\n")
    writer.drain()
    os.close(sink)
    dropped, kept = (tmp_path / "log").read_text().splitlines()
    assert orjson.loads(dropped) == {"event": "log.dropped", "num_lines": 5}
    assert kept == "kept"

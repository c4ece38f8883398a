import os
from dataclasses import replace
from io import FileIO
from pathlib import Path

import orjson
import pytest

from gristmill.producer.batches.rows import BadLine, LineReader, bad_line_row
from gristmill.producer.batches.submit_run import (
    EMBEDDED,
    InputFile,
    OutputFile,
    RunRecord,
    new_queue,
    output_file,
)
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import Request


def input_file(path: Path, *lines: object) -> InputFile:
    raw = [line if isinstance(line, bytes) else orjson.dumps(line) for line in lines]
    path.write_bytes(b"\n".join(raw))
    return InputFile(path, LineReader("run", max_request_bytes=2_048))


def test_both_passes_give_the_same_ids_and_custom_ids(tmp_path: Path) -> None:
    read = input_file(
        tmp_path / "in",
        {"custom_id": "a", "body": {"prompt": "1"}},
        {"id": "own", "body": {"prompt": "2"}, "metadata": {"kept": 1}},
        {"prompt": "3"},
    )
    assert read.check().num_lines == 3
    entries = [entry for _, entry in read.entries() if isinstance(entry, Request)]
    assert [entry.id for entry in entries] == ["run-1", "run-2", "run-3"]
    assert [entry.metadata for entry in entries] == [
        {"custom_id": "a"},
        {"custom_id": "own", "kept": 1},
        {"custom_id": "3"},
    ]


def test_a_number_used_as_custom_id_collides_with_the_line_of_that_number(tmp_path: Path) -> None:
    read = input_file(tmp_path / "in", {"custom_id": "2", "body": {"prompt": "1"}}, {"prompt": "2"})
    assert read.check().duplicates == {2: 1}


def test_a_duplicate_is_a_bad_line_in_the_second_pass_too(tmp_path: Path) -> None:
    same = {"custom_id": "a", "body": {"prompt": "1"}}
    read = input_file(tmp_path / "in", same, b"null", same, same)
    report = read.check()
    assert (report.num_bad, report.duplicates) == (3, {3: 1, 4: 1})
    bad = [entry for _, entry in read.entries() if isinstance(entry, BadLine)]
    assert [line.number for line in bad] == [2, 3, 4]
    assert "stands on line 1 too" in str(bad[1])


def test_finished_lines_are_left_out(tmp_path: Path) -> None:
    read = input_file(tmp_path / "in", *[{"prompt": "a"}] * 3)
    read.check()
    assert [number for number, _ in read.entries(bytearray([0, 1, 0, 1]))] == [2]


RUN = RunRecord(run="run", queue="q", input_bytes=1, input_digest="d", fields={"priority": "low"})


def row(number: int) -> bytes:
    return bad_line_row("run", BadLine(number, "why", str(number)))


@pytest.mark.parametrize("num_torn", range(1, len(row(2)) + 1))
def test_a_torn_last_row_is_cut_off_wherever_it_was_torn(tmp_path: Path, num_torn: int) -> None:
    path = tmp_path / "out"
    path.write_bytes(row(1) + row(2)[:-num_torn])
    RUN.write(path)
    with OutputFile(path) as output:
        written = output.keep_whole_rows("run", 3)
        output.append(row(3))
    assert (bytes(written.finished), written.num_finished, written.num_failed) == (
        b"\0\1\0\0",
        1,
        1,
    )
    assert path.read_bytes() == row(1) + row(3)


@pytest.mark.parametrize(
    "stranger",
    [
        b"text\n",
        b"{}\n",
        b"[]\n",
        row(7),
        bad_line_row("other", BadLine(1, "why", "1")),
        row(1).replace(b"run-1", b"run--1"),
    ],
)
def test_a_row_of_somebody_else_stops_a_resume(tmp_path: Path, stranger: bytes) -> None:
    path = tmp_path / "out"
    path.write_bytes(row(1) + stranger)
    with (
        OutputFile(path) as output,
        pytest.raises(InvalidRequest, match="line 2 is no row of run run"),
    ):
        output.keep_whole_rows("run", 3)


def test_an_output_that_nothing_began_in_leaves_no_file(tmp_path: Path) -> None:
    with OutputFile(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_before_is_never_taken_away(tmp_path: Path) -> None:
    """Regression: as root, `-o /dev/null` removed /dev/null."""
    empty, pipe = tmp_path / "empty", tmp_path / "pipe"
    empty.touch()
    os.mkfifo(pipe)
    with OutputFile(empty):
        pass
    for path in (pipe, tmp_path):
        with pytest.raises(InvalidRequest, match="is no regular file"):
            OutputFile(path)
    assert sorted(tmp_path.iterdir()) == [empty, pipe]


def test_an_output_that_the_process_before_takes_away_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[FileIO] = []
    locked = output_file._locked

    def locked_before_it_goes(path: Path) -> FileIO:
        opened.append(locked(path))
        if len(opened) == 1:
            path.unlink()
        return opened[-1]

    monkeypatch.setattr(output_file, "_locked", locked_before_it_goes)
    with OutputFile(tmp_path / "out") as output:
        output.append(row(1))
    assert (tmp_path / "out").read_bytes() == row(1)
    assert all(file.closed for file in opened)


def test_a_run_is_read_back_until_another_is_forced(tmp_path: Path) -> None:
    with OutputFile(tmp_path / "out") as output:
        assert output.begun_run(is_forced=False) is None
        output.begin(RUN)
        assert output.begun_run(is_forced=False) == RUN
        assert output.begun_run(is_forced=True) is None
        output.append(row(1))
        assert output.begun_run(is_forced=False) == RUN


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"run": "a"}'])
def test_a_run_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "out.run").write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"out\.run cannot be read"):
        RunRecord.read(tmp_path / "out")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"run": "x"}, "belongs to run run, not x"),
        ({"queue": "x"}, "is in queue q, not x; use the same as before"),
        ({"input_digest": "x"}, "the input has changed"),
        ({"fields": {}}, "--priority was 'low', and is not given now"),
        (
            {"fields": {"priority": "low", "skip_null": True}},
            "--skip-null was not given, and is given now",
        ),
        (
            {"fields": {"priority": "low", "params": {"temperature": 0}, "dedupe": True}},
            "--params was not given, and is {'temperature': 0} now",
        ),
    ],
)
def test_a_resume_that_differs_says_in_what(changed: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        RUN.check_same(replace(RUN, **changed))  # type: ignore[arg-type]
    RUN.check_same(replace(RUN))


OWN = new_queue()
OWN_WORKERS = r"resume it with gristmill run, vLLM's flags after -- and without REDIS_URL, or begin"
OWN_ON_REDIS = r"resume it with gristmill run, REDIS_URL and vLLM's flags after --, or begin"


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        (EMBEDDED, OWN, OWN_WORKERS),
        (EMBEDDED, "gristmill", OWN_WORKERS),
        (OWN, EMBEDDED, OWN_ON_REDIS),
        (OWN, "gristmill", OWN_ON_REDIS),
        ("q", EMBEDDED, "with REDIS_URL and --queue q, and without vLLM's flags after --, or"),
        ("q", OWN, "with REDIS_URL and --queue q, and without vLLM's flags after --, or"),
    ],
    ids=["embedded-own", "embedded-fleet", "own-embedded", "own-fleet", "fleet-embedded", "fleet-own"],
)  # fmt: skip
def test_a_resume_on_other_workers_says_how_the_run_began(
    then: str, now: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        replace(RUN, queue=then).check_same(replace(RUN, queue=now))

"""`gristmill demo` with the true engine and a tiny model: answers, and nothing left behind."""

import signal
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import orjson
import psutil
import pytest
from command_line import COMMAND
from models import tiny_model

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_spec("vllm") is None, reason="the demo runs vLLM"),
]


@pytest.fixture
def demo(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    arguments = ["demo", "--model", str(tiny_model()), "--cache", str(tmp_path), "-o", "out.jsonl"]
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        yield process
        process.kill()


def gone(processes: list[psutil.Process]) -> bool:
    """Whether all of them end within the time that a worker needs to notice."""
    return not psutil.wait_procs(processes, timeout=60)[1]


def test_the_demo_answers_every_request_and_leaves_no_process(
    demo: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    said, started = family_once(demo, b"finished")
    _, rest = demo.communicate()
    assert demo.returncode == 0, rest
    assert len(started) >= 3
    assert gone(started)
    rows = [orjson.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert len({row["custom_id"] for row in rows}) == 40
    for told in (
        b"starting a Redis",
        b"gristmill worker -- --model",
        b"capital of France",
        b"tok/s",
    ):
        assert told in said + rest


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "word", "code"),
    [
        (signal.SIGINT, b"finished", 130),
        (signal.SIGTERM, b"running: gristmill worker", 143),
        (signal.SIGKILL, b"finished", -9),
    ],
)
def test_a_demo_that_is_ended_leaves_no_process(
    demo: "subprocess.Popen[bytes]", number: int, word: bytes, code: int
) -> None:
    _, started = family_once(demo, word)
    demo.send_signal(number)
    assert demo.wait() == code
    assert gone(started)


def family_once(demo: "subprocess.Popen[bytes]", word: bytes) -> tuple[bytes, list[psutil.Process]]:
    """Return what the demo said up to a word, and its processes once its worker is there."""
    assert demo.stderr is not None
    said = b""
    for line in iter(demo.stderr.readline, b""):
        said += line
        if word in line:
            break
    while demo.poll() is None:
        family = psutil.Process(demo.pid).children(recursive=True)
        if any("worker" in process.cmdline() for process in family):
            return said, family
    pytest.fail(f"the demo ended without {word!r}: {said!r}")

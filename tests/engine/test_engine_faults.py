"""Test what happens if the engine dies, does not start, or is in reach of our signals."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gristmill.shared.errors import EngineDied, SettingsError
from gristmill.worker.engine import InProcessEngine, Response

pytestmark = pytest.mark.asyncio(loop_scope="function")

Processes = Callable[[], list[psutil.Process]]
COMPLETIONS = "/v1/completions"
LONG = b'{"model": "tiny", "prompt": "hello", "max_tokens": 500, "ignore_eos": true}'
SHORT = b'{"model": "tiny", "prompt": "hello", "max_tokens": 1}'
WAIT_S = 60


async def running(engine: InProcessEngine, count: int) -> "list[asyncio.Task[Response]]":
    posted = [asyncio.create_task(engine.post(COMPLETIONS, LONG)) for _ in range(count)]
    while engine.stats().running < count:
        await asyncio.sleep(0.001)
    return posted


async def test_killed_engine_core_fails_what_was_in_flight_and_can_be_started_anew(
    argv: list[str], engine_processes: Processes
) -> None:
    engine = InProcessEngine(argv)
    await engine.start()
    try:
        posted = await running(engine, 4)
        for process in engine_processes():
            process.kill()
        outcomes = await asyncio.gather(*posted, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [EngineDied] * 4
        with pytest.raises(EngineDied, match=r"EngineCore was killed by SIGKILL\. Most often"):
            await engine.check(30)
        with pytest.raises(EngineDied):
            await engine.post(COMPLETIONS, SHORT)

        await engine.start()
        assert (await engine.post(COMPLETIONS, SHORT)).status == 200

        await check_that_a_stopped_process_is_found_dead(engine, engine_processes())
        await check_that_an_aborted_request_is_no_answer(engine, engine_processes())
    finally:
        await engine.close()
        await engine.close()
    assert engine_processes() == []


async def check_that_a_stopped_process_is_found_dead(
    engine: InProcessEngine, processes: list[psutil.Process]
) -> None:
    for process in processes:
        process.suspend()
    with pytest.raises(EngineDied, match="did not answer within"):
        await engine.check(0.2)
    for process in processes:
        process.resume()
    await engine.check(30)


async def check_that_an_aborted_request_is_no_answer(
    engine: InProcessEngine, processes: list[psutil.Process]
) -> None:
    """Check that after a SIGTERM, EngineCore ends the running requests and takes no more."""
    posted = await running(engine, 2)
    for process in processes:
        process.terminate()
    answers = await asyncio.gather(*posted)
    assert [answer.finish_reason for answer in answers] == ["length", "length"]
    with pytest.raises(EngineDied):
        await engine.post(COMPLETIONS, SHORT)


@pytest.mark.long
async def test_signals_to_the_workers_group_leave_the_engine_alone(argv: list[str]) -> None:
    program = Path(__file__).with_name("isolated_worker.py")
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        str(program),
        *argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        while (line := await worker.stdout.readline()) != b"running\n":
            assert line, "the worker ended before its requests ran"
        family = psutil.Process(worker.pid).children(recursive=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.killpg(worker.pid, number)
        answers = json.loads(await worker.stdout.readline())
        assert answers == [[200, "length", 200]] * 8
    finally:
        worker.kill()
        await worker.wait()
    # A SIGKILL ended the worker without a close, so its engine must end by itself.
    _, alive = await asyncio.to_thread(psutil.wait_procs, family, WAIT_S)
    assert alive == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "no model given"),
        (["--max-num-seqs", "8"], "no model given"),
        (["--model"], "--model has no value"),
        (["--model", "/no/such/folder"], "/no/such/folder does not exist"),
        (["--model", "{model}", "--no-such-flag"], "--no-such-flag"),
        (["{model}", "--max-num-seqs", "many"], "--max-num-seqs"),
        (["{model}", "--enable-auto-tool-choice"], "tool-call-parser"),
        (["{model}", "--max-model-len", "999999"], "2048"),
        (["{model}", "--quantization", "nonsense"], "quantization"),
    ],
)
async def test_wrong_arguments_are_settings_errors_that_name_them(
    arguments: list[str], reason: str, model_dir: Path, engine_processes: Processes
) -> None:
    engine = InProcessEngine([each.format(model=model_dir) for each in arguments])
    with pytest.raises(SettingsError, match=reason):
        await engine.start()
    await engine.close()
    assert engine_processes() == []


async def test_kv_cache_too_small_is_reported_with_the_engines_own_reason(
    model_dir: Path, engine_processes: Processes
) -> None:
    small = ["--model", str(model_dir), "--enforce-eager", "--kv-cache-memory-bytes", "4096"]
    engine = InProcessEngine(small)
    with pytest.raises(EngineDied, match=r"memory for the cache blocks|KV cache"):
        await engine.start()
    assert engine_processes() == []


async def test_close_during_a_start_leaves_no_process(
    argv: list[str], engine_processes: Processes
) -> None:
    engine = InProcessEngine(argv)
    starting = asyncio.create_task(engine.start())
    while not engine_processes() and not starting.done():
        await asyncio.sleep(0.01)
    starting.cancel()
    await engine.close()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert engine_processes() == []

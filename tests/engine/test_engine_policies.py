"""Test the pure parts: bodies, refusals, progress, the choice of an engine, late imports."""

import json
import random
import subprocess
import sys

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.routing import Route
from structlog.testing import CapturingLogger

from gristmill.shared.errors import EngineDied, SettingsError
from gristmill.worker.engine import (
    EngineStats,
    InProcessEngine,
    RemoteEngine,
    engine_from,
    remote_server,
)
from gristmill.worker.engine.bodies import response_of, with_priority
from gristmill.worker.engine.refusals import refusal
from gristmill.worker.engine.vllm.arguments import serve_arguments
from gristmill.worker.engine.vllm.asgi import Application
from gristmill.worker.engine.vllm.runaway import is_repetition
from gristmill.worker.engine.vllm.token_progress import TokenProgress
from gristmill.worker.flag_secrets import without_secrets
from gristmill.worker.settings import WorkerSettings

CHAT = "/v1/chat/completions"


def test_importing_the_engine_loads_neither_torch_nor_vllm() -> None:
    program = (
        "import sys, gristmill.worker.engine; print(sorted({'torch', 'vllm'} & {*sys.modules}))"
    )
    assert subprocess.check_output([sys.executable, "-c", program]) == b"[]\n"


@pytest.mark.parametrize("value", ["true", '"true"', "1"])
def test_stream_is_read_as_pydantic_reads_it(value: str) -> None:
    response = refusal(CHAT, f'{{"stream": {value}}}'.encode(), [CHAT], 256)
    assert response is not None
    assert response.status == 400


@pytest.mark.parametrize(
    "body", [b'{"stream": false}', b'{"stream": null}', b'{"a": "\\"stream\\": true"}', b'"stream"']
)
def test_body_without_a_stream_is_let_through(body: bytes) -> None:
    assert refusal(CHAT, body, [CHAT], 256) is None


@pytest.mark.parametrize("body", [b"nonsense", b"[1]", b"\xff"])
def test_priority_leaves_what_is_no_object_to_the_engine(body: bytes) -> None:
    assert with_priority(body, 3) == body


def test_priority_zero_leaves_every_byte_of_a_body_without_one() -> None:
    assert with_priority(b'{ "seed":5 }', 0) == b'{ "seed":5 }'


@pytest.mark.parametrize("priority", [-1, 0, 1])
@pytest.mark.parametrize(
    "body",
    [b'{"priority": -9}', b'{"prior\\u0069ty": -9}', '{"priority": -9}'.encode("utf-16")],
)
def test_priority_replaces_the_value_of_the_body(body: bytes, priority: int) -> None:
    assert json.loads(with_priority(body, priority)) == {"priority": priority}


@pytest.mark.parametrize("body", [b"[]", b"null", b'{"usage": 3, "choices": [4]}'])
def test_json_of_any_shape_is_kept(body: bytes) -> None:
    assert response_of(200, body).body == body


def test_one_aborted_choice_counts_for_all() -> None:
    body = b'{"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}]}'
    assert response_of(200, body).finish_reason == "abort"


def test_progress_stalls_only_when_something_is_held_and_no_token_comes() -> None:
    progress = TokenProgress()
    busy = EngineStats(waiting=1, output_tokens=5)
    assert not progress.is_stalled(busy, 10, now=100)
    assert not progress.is_stalled(busy, 10, now=110)
    assert progress.is_stalled(busy, 10, now=111)
    assert progress.is_stalled(EngineStats(running=1, output_tokens=5, steps=9), 10, now=111)
    assert not progress.is_stalled(EngineStats(running=1, output_tokens=6), 10, now=112)
    assert not progress.is_stalled(EngineStats(prompt_tokens=1, output_tokens=6), 10, now=200)


@pytest.mark.parametrize(
    ("token_ids", "answer"),
    [
        ([7] * 64, True),
        ([1, 2, 3] * 40, True),
        ([*range(50), *[4, 5] * 32], True),  # only the end counts
        ([7] * 63, False),  # too short to tell
        ([*[7] * 63, 8], False),
        (list(range(8)) * 8, True),  # the longest pattern: an eighth of the span
        (list(range(9)) * 8, False),
        ([256, 1] * 31 + [256, 2], False),
        ([1, 256] * 32, True),
        ([0, 1 << 40] * 32, True),
        (list(range(64)), False),
    ],
)
def test_repetition_is_one_pattern_to_the_end(token_ids: list[int], answer: bool) -> None:
    assert is_repetition(token_ids, 64) is answer


def test_repetition_is_seen_whatever_the_pattern() -> None:
    chance = random.Random(5)
    for _ in range(500):
        pattern = [chance.randrange(3) for _ in range(chance.randrange(1, 9))]
        start = [chance.randrange(3) for _ in range(chance.randrange(20))]
        assert is_repetition(start + (pattern * 64)[:64], 64)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--model", "x", "--api-key", "k1", "k2", "--port", "1"], "--model x --api-key *** *** --port 1"),
        (["--api_key=k1", "--hf-token=t", "--port", "1"], "--api_key=*** --hf-token=*** --port 1"),
        (["x", "--hf-token", "t"], "x --hf-token ***"),
        (["--api-k", "k1", "--apikey=k2", "--tokenizer", "t"], "--api-k *** --apikey=*** --tokenizer t"),
        (["--kv-transfer-config", '{"password":"x"}', "--seed", "1"], "--kv-transfer-config *** --seed 1"),
        (['--hf-overrides={"API_KEY":"x"}', "--seed", "1"], "--hf-overrides=*** --seed 1"),
        (["--model", "https://u:p@h/m"], "--model ***"),
        (["https://u:p@h/m", "--seed=1"], "*** --seed=1"),
        (["--model", "https://h/m", "--chat-template", "a@b"], "--model https://h/m --chat-template a@b"),
    ],
)  # fmt: skip
def test_arguments_are_shown_without_secrets(argv: list[str], shown: str) -> None:
    assert " ".join(without_secrets(argv)) == shown


def test_structured_outputs_have_one_backend_for_all_requests() -> None:
    flag = "--structured-outputs-config.backend"
    for argv, backend in (
        ([], "xgrammar"),
        ([flag, "auto"], "xgrammar"),
        (["--structured-outputs-config", '{"enable_in_reasoning": true}'], "xgrammar"),
        ([flag, "guidance"], "guidance"),
    ):
        args = serve_arguments(["--model", "x", *argv])
        assert args.structured_outputs_config.backend == backend


def test_engine_is_chosen_by_url_or_arguments() -> None:
    remote = WorkerSettings(vllm_url="http://localhost:8000")
    assert isinstance(engine_from(remote, []), RemoteEngine)
    assert isinstance(engine_from(WorkerSettings(), ["--model", "x"]), InProcessEngine)


@pytest.mark.parametrize(("url", "argv"), [(None, []), ("http://localhost:8000", ["--model", "x"])])
def test_no_engine_or_two_are_refused(url: str | None, argv: list[str]) -> None:
    with pytest.raises(SettingsError, match="VLLM_URL"):
        engine_from(WorkerSettings(vllm_url=url), argv)


async def test_login_of_a_server_is_in_no_error() -> None:
    engine = RemoteEngine("http://user:s3cret@127.0.0.1:1", start_timeout_s=0)
    with pytest.raises(EngineDied, match=r"http://127\.0\.0\.1:1/health did not answer") as caught:
        await engine.start()
    assert "s3cret" not in str(caught.value)
    assert engine.evidence() == {"vllm_url": "http://127.0.0.1:1"}


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host:8000", "http://", "/v1"])
def test_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="write http://host:8000"):
        RemoteEngine(url)


async def test_error_that_the_application_lets_out_is_still_an_answer() -> None:
    """Starlette answers 500 and then raises the error too."""

    async def fall(request: Request) -> HttpResponse:
        raise AttributeError("list has no attribute get")

    app = Starlette(routes=[Route(CHAT, fall, methods=["POST"])])
    response = await Application(app).post(CHAT, b"[]", 0, None)
    assert response.status == 500
    assert json.loads(response.body)["error"]["message"].endswith(": Internal Server Error")


async def test_server_that_is_away_is_told_while_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(remote_server, "NOTICE_S", 0)
    monkeypatch.setattr(remote_server, "log", log)
    with pytest.raises(EngineDied):
        await RemoteEngine("http://127.0.0.1:1", start_timeout_s=1).start()
    assert log.calls[0].args == ("engine.waited_for",)
    assert "http://127.0.0.1:1/health" in log.calls[0].kwargs["error"]

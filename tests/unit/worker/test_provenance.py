"""Test that each answer says what made it, and says nothing that is not known."""

from dataclasses import replace
from importlib.metadata import version
from typing import Any

import orjson
import pytest

from gristmill.shared.records import Record
from gristmill.worker.engine import EngineInfo, Response
from gristmill.worker.provenance import Provenance

WORKER = {"worker": f"gristmill {version('gristmill')}"}
BODY = b'{"prompt":"hi"}'


def an_info(**fields: Any) -> EngineInfo:
    engine = EngineInfo(
        "in_process", ("base", "adapter"), (), 1, vllm_version="0.32.0", weights="sha256:ab"
    )
    return replace(engine, **fields)


def a_record(model: str = "", body: bytes = BODY) -> Record:
    header = f"1|1|0|default|normal|00||1|1|3||/v1/completions|{model}||"
    return Record.parse(f"{header}\n\n".encode() + body)


def made_by(info: EngineInfo, record: Record, response: Response) -> dict[str, Any]:
    made: dict[str, Any] = orjson.loads(Provenance(info).made_by(record, response))
    return made


def test_an_answer_says_model_weights_engine_and_worker() -> None:
    made = made_by(an_info(), a_record("base"), Response(200, b"{}", model="base"))
    known = {"model": "base", "weights": "sha256:ab", "engine": "vllm 0.32.0"}
    assert made == known | WORKER


@pytest.mark.parametrize(
    ("asked", "answered", "model"),
    [
        ("base", "adapter", "adapter"),
        ("adapter", "", "adapter"),
        ("", "", "base"),
        ("nobody", "", None),
        ("", 'a "quoted" name', 'a "quoted" name'),
    ],
)
def test_the_model_is_the_answers_or_the_served_one_that_was_asked_for(
    asked: str, answered: str, model: str | None
) -> None:
    made = made_by(an_info(), a_record(asked), Response(200, b"{}", model=answered))
    assert made.get("model") == model
    assert ("model" in made) == (model is not None)


def test_what_a_server_does_not_say_is_left_out() -> None:
    info = an_info(transport="remote", models=(), vllm_version="", weights="")
    assert made_by(info, a_record(), Response(200, b"{}")) == WORKER


def test_a_seed_is_told_if_the_engine_took_it() -> None:
    record = a_record(body=b'{"prompt":"hi","seed":7}')
    assert made_by(an_info(), record, Response(200, b"{}"))["seed"] == 7
    assert "seed" not in made_by(an_info(), record, Response(400, b"{}"))
    assert "seed" not in made_by(an_info(), a_record(), Response(200, b"{}"))


def test_a_restart_describes_the_engine_anew() -> None:
    provenance = Provenance(an_info())
    provenance.note_start(an_info(models=("new",), vllm_version="0.33.0", weights=""))
    made = orjson.loads(provenance.made_by(a_record(), Response(200, b"{}")))
    assert made == {"model": "new", "engine": "vllm 0.33.0"} | WORKER

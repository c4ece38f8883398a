"""Test how many sequences a request asks for, and that one request cannot fill the engine for hours."""

import json
from typing import Any

import pytest
from admissions import record

from gristmill.worker.admission.capacity import Capacity, Demand
from gristmill.worker.admission.room import Admission
from gristmill.worker.engine.interface import EngineStats
from gristmill.worker.engine.refusals import refusal
from gristmill.worker.engine.sequences import num_sequences
from gristmill.worker.engine.stub import StubEngine

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


@pytest.mark.parametrize(
    ("endpoint", "fields", "expected"),
    [
        (COMPLETIONS, {"prompt": "x"}, 1),
        (COMPLETIONS, {"prompt": "x", "n": 7}, 7),
        (COMPLETIONS, {"prompt": "x", "n": "7"}, 7),
        (COMPLETIONS, {"prompt": "x", "n": 7.0}, 7),
        (COMPLETIONS, {"prompt": "x", "n": 7, "use_beam_search": True}, 7),
        (COMPLETIONS, {"prompt": ["x", "y"], "n": 7}, 14),
        (COMPLETIONS, {"prompt": [1, 2, 3], "n": 7}, 7),
        (COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
        (COMPLETIONS, {"prompt_embeds": ["AAAA", "AAAA"], "prompt": "x"}, 3),
        (COMPLETIONS, {"prompt": [], "n": None}, 1),
        (COMPLETIONS, {"prompt": "x", "n": -3}, 1),
        (COMPLETIONS, {"prompt": "x", "n": "many"}, 1),
        (CHAT, {"messages": [{}, {}, {}], "n": 5}, 5),
        ("/v1/responses", {"input": [{}, {}], "n": 5}, 1),
        (EMBEDDINGS, {"input": ["a", "b", "c"], "n": 5}, 3),
        (EMBEDDINGS, {"input": [1, 2, 3]}, 1),
        (EMBEDDINGS, {"messages": [{"role": "user"}, {"role": "user"}]}, 1),
        (EMBEDDINGS, {"messages": [[{}], [{}]]}, 2),
        ("/rerank", {"query": "q", "documents": {"content": [{}, {}]}}, 2),
        ("/score", {"text_1": ["a"], "text_2": ["b", "c"]}, 3),
        ("/tokenize", {"prompt": ["a", "b"]}, 1),
    ],
)
def test_each_choice_of_each_prompt_is_a_sequence(
    endpoint: str, fields: dict[str, Any], expected: int
) -> None:
    assert num_sequences(endpoint, json.dumps(fields).encode()) == expected


@pytest.mark.parametrize(
    "body", [b'{"n": 9, "x": NaN}', b'{"\\u006e": 9}', '{"n": 9}'.encode("utf-16")]
)
def test_body_that_only_the_standard_library_reads_is_counted(body: bytes) -> None:
    assert num_sequences(CHAT, body) == 9


@pytest.mark.parametrize("body", [b"", b"[]", b"[" * 10**5, b"\xff"])
def test_body_that_vllm_cannot_read_is_one_sequence(body: bytes) -> None:
    assert num_sequences(CHAT, body) == 1


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (CHAT, {"messages": [], "n": 17}),
        (COMPLETIONS, {"prompt": ["x", "y", "z"], "n": 6}),
        (COMPLETIONS, {"prompt": ["x"] * 17}),
        (EMBEDDINGS, {"input": ["x"] * 2049}),
    ],
)
def test_more_sequences_than_the_engine_runs_are_refused(
    endpoint: str, fields: dict[str, Any]
) -> None:
    refused = refusal(endpoint, json.dumps(fields).encode(), [endpoint], 16)
    assert refused is not None
    assert (refused.status, refused.is_refusal) == (400, True)
    message = json.loads(refused.body)["error"]["message"]
    assert "--max-num-seqs" in message
    assert "16 at a time" in message
    assert "split it" in message


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [(CHAT, {"messages": [], "n": 16}), (EMBEDDINGS, {"input": ["x"] * 2048})],
)
def test_as_many_sequences_as_the_engine_runs_are_accepted(
    endpoint: str, fields: dict[str, Any]
) -> None:
    assert refusal(endpoint, json.dumps(fields).encode(), [endpoint], 16) is None


async def test_engine_refuses_by_its_own_number_of_places() -> None:
    engine = StubEngine(max_num_seqs=4)
    await engine.start()
    assert (await engine.post(COMPLETIONS, b'{"prompt":"x","n":4}')).status == 200
    assert (await engine.post(COMPLETIONS, b'{"prompt":"x","n":5}')).status == 400


@pytest.mark.parametrize("gulp", [1, 5])
def test_each_sequence_takes_a_place(gulp: int) -> None:
    account = Admission(Capacity(20, 20, gulp=gulp), EngineStats, 2**20)
    demand = Demand(1000, 1)
    leave = account.enter(record(1, 1, b'{"prompt":"x","n":12}'))
    assert account.room([], demand, 0).num_requests == 8
    assert account.room([record(1, 1, b'{"prompt":["x","y"]}')], demand, 0).num_requests == 6
    others = [account.enter(record(1, 1, b'{"prompt":"x","n":16384}')) for _ in range(2)]
    assert account.room([], demand, 0).num_requests == 0
    assert account.urgent_room([], only_kept=False).num_requests == 0
    for each in (leave, *others):
        each()
    assert account.room([], demand, 100).num_requests == 20

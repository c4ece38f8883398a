"""Test that any answer of a server becomes valid JSON for a record."""

import json

import orjson
import pytest

from gristmill.worker.engine import Response
from gristmill.worker.engine.bodies import response_of, seed_of, with_priority
from gristmill.worker.engine.refusals import bounded


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (413, b"<html>too large</html>", 413),
        (400, b"", 400),
        (200, b'{"a": NaN}', 500),
        (200, b'{"a": "\\ud83d"}', 500),
        (200, b"\xff", 500),
        (200, b"[" * 5000 + b"]" * 5000, 500),
        (499, b"<html>", 499),
        (520, b"<html>", 520),
        (999, b"<html>", 999),
    ],
)
def test_what_is_no_json_becomes_an_error_that_quotes_it(
    status: int, body: bytes, expected: int
) -> None:
    response = response_of(status, body)
    assert response.status == expected
    assert (
        f"the server answered {status} with {len(body):,} bytes"
        in orjson.loads(response.body)["error"]["message"]
    )


def test_json_stays_as_it_is() -> None:
    assert response_of(200, b'{"b": 1,  "a": 2}').body == b'{"b": 1,  "a": 2}'


def test_deep_nesting_is_left_to_the_engine_to_refuse() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert with_priority(deep, -1) == deep


@pytest.mark.parametrize("number", [True, -1, 1.5, "3", None, [1], 10**30])
def test_usage_that_is_no_number_of_tokens_counts_for_none(number: object) -> None:
    usage = {"prompt_tokens": number, "completion_tokens": 2}
    body = json.dumps({"usage": usage, "choices": []}).encode()
    response = response_of(200, body)
    assert (response.prompt_tokens, response.output_tokens, response.body) == (0, 2, body)


@pytest.mark.parametrize(
    ("model", "named"),
    [("m", "m"), (None, ""), (7, ""), (["m"], ""), ("m" * 256, "m" * 256), ("m" * 257, "")],
)
def test_model_of_an_answer_is_a_name(model: object, named: str) -> None:
    assert response_of(200, json.dumps({"model": model}).encode()).model == named
    assert response_of(200, b"{}").model == ""


@pytest.mark.parametrize(
    ("seed", "read"),
    [
        (7, 7), (0, 0), (-2, -2), ("8", 8), (7.0, 7), (2**63 - 1, 2**63 - 1),
        (-1, None), (None, None), (1.5, None), ("x", None), ([7], None), (2**63, None),
    ],
)  # fmt: skip
def test_seed_is_read_as_vllm_reads_it(seed: object, read: int | None) -> None:
    assert seed_of(json.dumps({"prompt": "x", "seed": seed}).encode()) == read


@pytest.mark.parametrize("body", [b"{}", b'{"a":{"seed":7}}', b'"seed"', b'{"seed":', b'["seed"]'])
def test_body_without_a_seed_of_its_own_has_none(body: bytes) -> None:
    assert seed_of(body) is None


@pytest.mark.parametrize("depth", [240, 255, 300, 1000])
def test_answer_that_no_row_could_hold_is_an_error(depth: int) -> None:
    body = b'{"a":' * depth + b"1" + b"}" * depth
    response = bounded(Response(200, body), 10**6)
    if depth == 240:
        assert response.body == body
        orjson.dumps({"response": {"body": orjson.loads(response.body)}})
    else:
        assert response.status == 413
        assert orjson.loads(response.body)["error"]["type"] == "ResultTooDeepError"


def test_answer_with_many_brackets_side_by_side_is_kept() -> None:
    response = Response(200, b"[" + b",".join([b"{}"] * 1000) + b"]")
    assert bounded(response, 10**6) is response

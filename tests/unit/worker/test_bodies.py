"""What a server answered becomes JSON in a record, whatever it was."""

import orjson
import pytest

from gristmill.worker.engine.bodies import response_of, with_priority


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (413, b"<html>too large</html>", 413),
        (400, b"", 400),
        (200, b'{"a": NaN}', 500),
        (200, b'{"a": "\\ud83d"}', 500),
        (200, b"\xff", 500),
        (200, b"[" * 5000 + b"]" * 5000, 500),
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

"""Test the limits of fields whose cost falls on all requests of an engine."""

import json
from typing import Any

import pytest

from gristmill.worker.engine.refusals import refusal

CHAT = "/v1/chat/completions"


def refused(fields: dict[str, Any]) -> dict[str, Any] | None:
    response = refusal(CHAT, json.dumps(fields).encode(), [CHAT], 256)
    if response is None:
        return None
    assert (response.status, response.is_refusal) == (400, True)
    error: dict[str, Any] = json.loads(response.body)["error"]
    return error


TOO_LARGE: list[tuple[str, Any, str]] = [
    ("bad_words", ["x" * 1_001], "an entry of 1,001 characters, the limit is 1,000"),
    ("bad_words", ["x" * 1_000] * 66, "66,000 characters, the limit is 65,536"),
    ("bad_words", ["x"] * 1_001, "1,001 entries, the limit is 1,000"),
    ("stop", "x" * 1_001, "1,001 characters"),
    ("stop", ["x"] * 65, "65 entries, the limit is 64"),
    ("stop_sequences", ["x"] * 65, "65 entries"),
    ("stop_token_ids", list(range(1_025)), "1,025 entries, the limit is 1,024"),
    ("logprob_token_ids", list(range(1_025)), "1,025 entries"),
    ("logit_bias", {str(token): 1 for token in range(1_025)}, "1,025 entries"),
    ("allowed_token_ids", [1] * (2**18 + 1), "262,145 entries, the limit is 262,144"),
    ("repetition_detection", {"max_pattern_size": 1_025}, "above the limit of 1,024"),
    ("repetition_detection", {"max_pattern_size": "1025"}, "above the limit of 1,024"),
    ("repetition_detection", {"max_pattern_size": 10**400}, "above the limit of 1,024"),
]


@pytest.mark.parametrize(("name", "value", "words"), TOO_LARGE)
def test_field_above_its_limit_is_refused_by_name(name: str, value: Any, words: str) -> None:
    error = refused({"messages": [], name: value})
    assert error is not None
    assert error["param"] == name
    assert name in error["message"]
    assert words in error["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bad_words", ["x" * 65] * 1_000),
        ("stop", ["x" * 1_000] * 64),
        ("stop", None),
        ("logit_bias", {str(token): 1 for token in range(1_024)}),
        ("allowed_token_ids", list(range(2**18))),
        ("bad_words", 7),  # vLLM refuses it
        ("repetition_detection", {"max_pattern_size": 20, "min_count": 3}),
        ("repetition_detection", {"max_pattern_size": "many"}),
    ],
)
def test_field_at_its_limit_is_left_to_the_engine(name: str, value: Any) -> None:
    assert refused({"messages": [], name: value}) is None

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
from models import tiny_model

from gristmill.producer.commands.forecast.estimates import Estimate, in_short, t_quantile
from gristmill.producer.commands.forecast.forecast_options import ForecastOptions, OwnModel
from gristmill.producer.commands.forecast.model_tokenizer import ModelTokenizer
from gristmill.producer.commands.forecast.prediction import Prediction, in_time
from gristmill.producer.commands.forecast.preview import Sample, predicted
from gristmill.producer.commands.forecast.row_sample import evenly, random_rows, spread_rows
from gristmill.producer.commands.forecast.token_limits import (
    ModelLengths,
    most_output,
    num_outputs,
)
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import CHAT, Request
from gristmill.shared.results import Result


@pytest.mark.parametrize(
    ("num_degrees", "quantile"), [(4, 2.132), (9, 1.833), (49, 1.677), (10_000, 1.645)]
)
def test_the_quantile_is_that_of_the_tables(num_degrees: int, quantile: float) -> None:
    assert t_quantile(num_degrees) == pytest.approx(quantile, rel=0.01)


def test_the_interval_of_a_sum_is_that_of_the_textbook() -> None:
    values = [10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0, 24.0, 26.0, 28.0]  # s = 6.055
    estimate = Estimate.of_total(values, 1_000)
    half = 1_000 * 1.833 * 6.0553 / 10**0.5 * (1 - 0.01) ** 0.5
    assert estimate.value == 19_000
    assert estimate.high - 19_000 == pytest.approx(half, rel=0.002)
    assert 19_000 - estimate.low == pytest.approx(half, rel=0.002)


def test_nine_of_ten_intervals_have_the_true_sum() -> None:
    rows = [20 + number % 83 for number in range(5_000)]
    is_within = []
    for seed in range(200):
        some = [rows[(seed * 7919 + number * 104_729) % len(rows)] for number in range(50)]
        estimate = Estimate.of_total(some, len(rows))
        is_within.append(estimate.low <= sum(rows) <= estimate.high)
    assert 0.85 <= sum(is_within) / 200 <= 1


def test_a_sample_of_all_values_has_no_doubt_and_no_sum_is_below_its_sample() -> None:
    assert Estimate.of_total([1, 2, 3], 3) == Estimate(6, 6, 6)
    assert Estimate.of_total([0, 0, 900], 4).low == 900
    assert Estimate.of_total([5], 2).high == float("inf")


@pytest.mark.parametrize(
    ("number", "short"),
    [(0, "0"), (9_999, "9,999"), (12_345, "12.3 k"), (123_456, "123 k"), (1_234_567, "1.23 M")],
)
def test_numbers_for_people_have_three_digits(number: float, short: str) -> None:
    assert in_short(number) == short


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.25, "0.2 s"), (90, "1.5 min"), (3_240, "54.0 min"), (5_400, "1.5 h")]
)
def test_times_have_the_unit_that_suits_them(seconds: float, words: str) -> None:
    assert in_time(seconds) == words


def test_the_rows_of_a_preview_lie_in_all_parts_of_the_input() -> None:
    rows = spread_rows(1_000, 10)
    assert [(row - 1) // 100 for row in rows] == list(range(10))
    assert rows == spread_rows(1_000, 10)
    assert spread_rows(3, 10) == [1, 2, 3]
    assert random_rows(5, 10) == [1, 2, 3, 4, 5]
    assert len(set(random_rows(1_000, 10))) == 10
    assert evenly(range(1, 9), 4) == [1, 3, 5, 7]
    assert evenly([4, 5], 9) == [4, 5]


def body_of(request: Request) -> dict[str, object]:
    body: dict[str, object] = orjson.loads(request.body)
    return body


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({"messages": [], "max_tokens": 7}, 7),
        ({"messages": [], "max_tokens": 7, "max_completion_tokens": 5}, 5),
        ({"messages": []}, None),
        ({"prompt": "a"}, 16),
        ({"input": "a"}, 0),
    ],
    ids=["limit", "newer_name", "no_limit", "completion", "embedding"],
)
def test_the_bound_of_an_output_is_that_of_its_endpoint(
    body: dict[str, object], most: int | None
) -> None:
    request = Request.from_body(body)
    assert most_output(request, body_of(request)) == most


def test_each_prompt_of_a_body_gets_n_outputs() -> None:
    assert num_outputs({"prompt": "a"}) == 1
    assert num_outputs({"prompt": ["a", "b"], "n": 3}) == 6
    assert num_outputs({"prompt": [1, 2, 3]}) == 1


def test_a_model_tells_its_length_by_flag_or_by_file() -> None:
    folder = str(tiny_model())
    own = OwnModel(name=folder, tokenizer=folder, revision=None, max_model_len=None)
    assert ModelLengths.of(None, own).tokens("any") == 2_048
    given = OwnModel(name=folder, tokenizer=folder, revision=None, max_model_len=64)
    assert ModelLengths.of(None, given).tokens("any") == 64
    assert ModelLengths.of(None, None).tokens("any") is None


def test_parts_count_as_one_text_and_token_ids_as_they_are() -> None:
    tokenizer = ModelTokenizer(str(tiny_model()))

    def count(body: Mapping[str, Any], **fields: str) -> int | None:
        request = Request.from_body(body, **fields)
        return tokenizer.prompt_tokens(request, body)

    parts = [{"type": "text", "text": "hello world"}, {"type": "image_url"}]
    asked = [{"messages": [{"role": "user", "content": each}]} for each in ("hello world", parts)]
    assert count(asked[0]) == count(asked[1])
    assert (
        count({"prompt": ["hello world", [1, 2, 3]]}) == (count({"prompt": "hello world"}) or 0) + 3
    )
    assert count({"query": "a", "documents": []}, endpoint="/rerank") is None


def with_template(made: Path, template: str) -> ModelTokenizer:
    source = tiny_model()
    (made / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    config = {"bos_token": {"content": "<|endoftext|>"}, "chat_template": template}
    (made / "tokenizer_config.json").write_bytes(orjson.dumps(config))
    return ModelTokenizer(str(made))


def test_templates_have_what_transformers_gives_them(tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ tools | tojson }}"
        "{{ strftime_now('%Y') | length }}{% if thinks %}hello{% endif %}"
    )
    tokenizer = with_template(tmp_path, template)
    messages = [{"role": "tool", "content": "no"}, {"role": "user", "content": "the fox"}]
    body = {
        "messages": messages, "tools": [{"a": "<b>"}], "chat_template_kwargs": {"thinks": True},
    }  # fmt: skip
    text = '<|endoftext|>the fox[{"a": "<b>"}]4hello'
    request = Request.from_body(body)
    plain = Request.from_body({"prompt": text, "add_special_tokens": False})
    assert tokenizer.prompt_tokens(request, body) == tokenizer.prompt_tokens(plain, body_of(plain))


def test_what_cannot_be_counted_is_named(tmp_path: Path) -> None:
    refusing = with_template(tmp_path, "{{ raise_exception('roles must alternate') }}")
    chat = Request.from_body({"messages": [{"role": "user", "content": "a"}]})
    with pytest.raises(InvalidRequest, match="refuses the messages: roles must alternate"):
        refusing.prompt_tokens(chat, body_of(chat))
    with pytest.raises(InvalidRequest, match="a chat template has an error"):
        with_template(tmp_path, "{% if %}")
    with pytest.raises(InvalidRequest, match=r"has no tokenizer.json that can be read"):
        ModelTokenizer("/nowhere/model")


def sample_of(num: int, output_tokens: int, *, worker: str = "w1") -> Sample:
    """Return a sample that took ten seconds."""
    requests = {
        row: Request(body=b"{}", id=f"p-{row}", prompt_tokens=30, max_tokens=20)
        for row in range(1, num + 1)
    }
    sample = Sample(requests, num_devices={"w1": 1, "w2": 3}, is_gpu=True)
    for request in requests.values():
        usage = {"usage": {"prompt_tokens": 10, "completion_tokens": output_tokens}}
        sample.results[request.id] = Result(
            request.id, "succeeded", CHAT, 1, 1_000, 11_000, 200, usage, None, None, worker
        )
    return sample


def test_a_prediction_takes_the_better_pace_and_all_devices() -> None:
    sample = sample_of(10, 5)
    prediction = predicted(sample, 1_000)
    assert prediction is not None
    assert (prediction.output_tokens.value, prediction.prompt_tokens.value) == (5_000, 10_000)
    assert prediction.pace == "preview"
    assert prediction.seconds.value == pytest.approx(1_000 * 10 / 10 / 4)  # one of four devices
    assert prediction.gpu_hours is not None
    assert prediction.gpu_hours.value == pytest.approx(1_000 / 3_600)
    sample.before = 500.0
    faster = predicted(sample, 1_000)
    assert faster is not None
    assert (faster.pace, faster.seconds.value) == ("queue", 1_000 * 50 / 500)
    sample.before = 1.0
    assert predicted(sample, 1_000) == prediction


def test_one_answer_predicts_nothing_but_itself() -> None:
    assert predicted(sample_of(1, 5), 1_000) is None
    one = predicted(sample_of(1, 5), 1)
    assert one is not None
    assert one.output_tokens == Estimate(5, 5, 5)


def test_a_verdict_compares_the_share_that_ran() -> None:
    prediction = Prediction(
        requests=1_000,
        prompt_tokens=Estimate(1, 1, 1),
        output_tokens=Estimate(1_200_000, 1_100_000, 1_300_000),
        seconds=Estimate(5_400, 5_400, 5_400),
        gpu_hours=None,
        pace="preview",
    )
    assert prediction.verdict(1_000, 1_300_000, 5_040) == (
        "predicted 1.20 M (1.10 M to 1.30 M) output tokens, 1.5 h; took 1.30 M, 1.4 h"
    )
    assert prediction.verdict(500, 600_000, 2_700).startswith(
        "predicted for 500 of 1,000 requests 600 k (550 k to 650 k) output tokens, 45.0 min; took"
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (ForecastOptions(dry_run=True, preview=9), "leave one out"),
        (ForecastOptions(tokenizer="x"), "--tokenizer counts tokens for --dry-run"),
        (ForecastOptions(preview=9, tokenizer="x"), "--tokenizer counts tokens for --dry-run"),
    ],
    ids=["both", "tokenizer_alone", "tokenizer_of_preview"],
)
def test_options_that_do_not_go_together_are_refused(options: ForecastOptions, told: str) -> None:
    with pytest.raises(click.UsageError, match=told):
        options.check()

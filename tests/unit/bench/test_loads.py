"""Loads: the lengths that were asked for, the same each time."""

from pathlib import Path
from statistics import mean

import orjson
import pytest

from gristmill.bench.loads import SHAPES, from_file, named
from gristmill.shared.errors import InvalidRequest, SettingsError


@pytest.mark.parametrize(
    ("name", "prompts", "outputs", "mean_prompt", "mean_output"),
    [
        ("lognormal", (16, 1024), (8, 512), 200, 127),  # of the clipped distributions
        ("uniform", (16, 512), (8, 256), 264, 132),
        ("bimodal", (32, 1024), (8, 512), 230, 106),
        ("shared-prefix", (528, 576), (16, 64), 552, 40),
    ],
)
def test_load_has_the_lengths_of_its_name(
    name: str,
    prompts: tuple[int, int],
    outputs: tuple[int, int],
    mean_prompt: float,
    mean_output: float,
) -> None:
    load = named(name, 4000)
    assert min(each.prompt_tokens for each in load) >= prompts[0]
    assert max(each.prompt_tokens for each in load) <= prompts[1]
    assert min(each.max_tokens for each in load) >= outputs[0]
    assert max(each.max_tokens for each in load) <= outputs[1]
    assert mean(each.prompt_tokens for each in load) == pytest.approx(mean_prompt, rel=0.06)
    assert mean(each.max_tokens for each in load) == pytest.approx(mean_output, rel=0.06)


@pytest.mark.parametrize("name", SHAPES)
def test_load_is_the_same_each_time_and_another_for_another_seed(name: str) -> None:
    assert named(name, 40, seed=1) == named(name, 40, seed=1)
    assert named(name, 40, seed=1) != named(name, 40, seed=2)
    assert named(name, 40)[:1] != named(name, 40, seed=1)[:1]


@pytest.mark.parametrize("name", SHAPES)
def test_load_fixes_the_length_of_each_answer(name: str) -> None:
    for each in named(name, 40):
        assert len(each.body["prompt"]) == each.prompt_tokens
        assert each.body["max_tokens"] == each.max_tokens
        assert (each.body["temperature"], each.body["ignore_eos"]) == (0, True)


def test_scale_shortens_all_lengths() -> None:
    full, quarter = named("lognormal", 100), named("lognormal", 100, scale=0.25)
    assert quarter[0].prompt_tokens == max(4, full[0].prompt_tokens // 4)
    assert sum(each.max_tokens for each in quarter) == pytest.approx(
        sum(each.max_tokens for each in full) / 4, rel=0.2
    )


def test_shared_prefixes_are_interleaved_and_equal_within_a_group() -> None:
    load = named("shared-prefix", 96)
    assert len({each.prefix for each in load[:32]}) == 32
    assert load[0].prefix == load[32].prefix == load[64].prefix
    assert load[0].body["prompt"][:512] == load[32].body["prompt"][:512]
    assert load[0].body["prompt"][512:] != load[32].body["prompt"][512:]
    assert load[0].body["prompt"][:512] != load[1].body["prompt"][:512]


def test_one_tenant_floods_before_the_others_come() -> None:
    tenants = [each.tenant for each in named("tenants", 112)]
    assert set(tenants[:56]) == {"flood"}
    assert {name: tenants.count(name) for name in tenants[56:]} == {
        f"quiet-{i}": 8 for i in range(7)
    }


def test_request_names_model_salt_and_estimates() -> None:
    one = named("shared-prefix", 1)[0]
    request = one.request("m", "run-1")
    body = orjson.loads(request.body)
    assert (body["model"], body["cache_salt"]) == ("m", "run-1")
    assert (request.prompt_tokens, request.max_tokens) == (one.prompt_tokens, one.max_tokens)
    assert (request.endpoint, request.model, request.prefix) == (one.endpoint, "m", "group-00")
    assert request.id != one.request("m", "run-1").id
    assert "cache_salt" not in orjson.loads(one.request("m").body)


@pytest.mark.parametrize(
    ("name", "number", "scale"), [("x", 1, 1), ("uniform", 0, 1), ("uniform", 1, 0)]
)
def test_load_that_is_none_is_refused(name: str, number: int, scale: float) -> None:
    with pytest.raises(
        SettingsError, match=r"unknown load 'x'; use one of lognormal|is empty; use"
    ):
        named(name, number, scale=scale)


def test_file_gives_its_requests_without_their_model(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text(
        '{"prompt": "a b c", "max_tokens": 7, "model": "other"}\n\n'
        '{"body": {"messages": [{"role": "system", "content": "s"}]}, "tenant": "t",'
        ' "priority": "high", "deadline_s": 9, "id": "x"}\n'
        '{"input": "third"}\n'
    )
    first, second = from_file(path, 2)
    assert (first.endpoint, first.body) == ("/v1/completions", {"prompt": "a b c", "max_tokens": 7})
    assert first.max_tokens == 7
    assert (second.endpoint, second.tenant, second.priority, second.deadline_s) == (
        "/v1/chat/completions",
        "t",
        "high",
        9,
    )
    assert second.prefix != ""
    assert second.request("m").id != "x"  # each run submits it anew
    assert len(from_file(path)) == 3


def test_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text('{"prompt": "a"}\n[1]\n')
    with pytest.raises(InvalidRequest, match=r"load\.jsonl, line 2: it is an array"):
        from_file(path)
    path.write_text("\n")
    with pytest.raises(InvalidRequest, match=r"load\.jsonl has no requests"):
        from_file(path)

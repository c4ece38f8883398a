"""How many engines fit on a device, by what a model's files say."""

import json
from pathlib import Path

import pytest

from gristmill.bench.loads import LoadRequest, named
from gristmill.bench.tune.model_memory import (
    ModelMemory,
    num_shares,
    read_model_memory,
    wanted_tokens,
)

H200_BYTES = 150 * 10**9

LARGE = {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 49_152,
}
SMALL = {
    **LARGE,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "head_dim": 64,
}


def memory_of(folder: Path, config: dict[str, int]) -> ModelMemory | None:
    (folder / "config.json").write_text(json.dumps(config))
    return read_model_memory(str(folder))


@pytest.mark.parametrize(("config", "shares"), [(SMALL, 4), (LARGE, 2)], ids=["1B", "8B"])
@pytest.mark.parametrize("sequences", [512, 1024])
def test_card_holds_several_engines_of_a_small_model(
    config: dict[str, int], shares: int, sequences: int, tmp_path: Path
) -> None:
    model = memory_of(tmp_path, config)
    tokens = wanted_tokens(named("lognormal", 512), sequences)
    assert num_shares(model, 0.9 * H200_BYTES, tokens, most=4) == shares


def test_weights_and_cache_follow_from_the_configuration(tmp_path: Path) -> None:
    model = memory_of(tmp_path, LARGE)
    assert model is not None
    assert model.weights_bytes == pytest.approx(14.8e9, rel=0.02)
    assert model.token_bytes == 131_072


def test_files_of_weights_count_more_than_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"0" * 1000)
    model = memory_of(tmp_path, LARGE)
    assert model is not None
    assert model.weights_bytes == 1000


def test_model_that_says_nothing_gets_two_parts_at_most(tmp_path: Path) -> None:
    assert memory_of(tmp_path, {}) is None
    assert read_model_memory(str(tmp_path / "nowhere")) is None
    assert num_shares(None, H200_BYTES, 10, most=4) == 2
    assert num_shares(None, H200_BYTES, 10, most=1) == 1


def test_model_that_fills_the_device_gets_all_of_it() -> None:
    assert num_shares(ModelMemory(140 * 10**9, 10**6), H200_BYTES, 10**6, most=4) == 1


def test_few_sequences_still_fit_when_they_double() -> None:
    load = [LoadRequest("/v1/completions", {}, 100, 28)]
    wanted = [wanted_tokens(load, number) for number in (256, 512, 800, 2048)]
    assert wanted == [128 * number for number in (512, 1024, 1024, 2048)]

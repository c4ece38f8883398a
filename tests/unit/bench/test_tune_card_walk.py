"""What the search tries on a card, and in which order."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulated_card import large_model, small_model

from gristmill.bench.loads import named
from gristmill.bench.tune.candidates import AUTO, PLAIN, Candidate, Setting
from gristmill.bench.tune.first_engine import num_slots
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.search import Search
from gristmill.bench.tune.search_record import NO_TIME, Card

Speed = Callable[[Candidate], float]


def walked(
    speed: Speed,
    start: Setting,
    card: Card,
    has_time: Callable[[Candidate], bool] = lambda _: True,
) -> tuple[Search, list[Candidate]]:
    """Run a search on a computed card without noise; return it and what it asked for."""
    search = Search(start, Goal(), 1, card)
    asks, asked = search.asks(), list[Candidate]()
    candidate = next(asks)
    while True:
        asked.append(candidate)
        point = MeasuredPoint(
            candidate,
            output_tokens_per_s=speed(candidate),
            running=candidate.filled,
            tokens_per_step=2.6 * candidate.filled,
            gulp_places=candidate.filled / 8 if candidate.refill != PLAIN else 0,
        )
        try:
            candidate = asks.send(point if has_time(candidate) else None)
        except StopIteration:
            return search, asked


def first(asked: list[Candidate], wanted: Callable[[Candidate], bool]) -> int:
    return next((i for i, each in enumerate(asked) if wanted(each)), 10**6)


def test_start_is_what_a_worker_does_with_the_flags() -> None:
    card = Card(has_gulps=True)
    assert Search(Setting(512, 2048), Goal(), 1, card).start == Candidate(
        Setting(512, 2048), 512, refill=AUTO
    )
    assert Search(Setting(512, 2048), Goal()).start == Candidate(Setting(512, 2048), 564)


def test_engines_come_before_sequences_for_a_small_model() -> None:
    start = Setting(512, 16_384, slots=4)
    _, asked = walked(small_model, start, Card(4, has_gulps=True, has_capture=True))
    engines = first(asked, lambda each: each.engines == 4)
    assert engines < first(asked, lambda each: each.setting.max_num_seqs > 512)


def test_up_to_512_sequences_come_before_the_engines_of_a_small_model() -> None:
    start = Setting(256, 16_384, slots=4)
    _, asked = walked(small_model, start, Card(4, has_gulps=True, has_capture=True))
    sequences = first(asked, lambda each: each.setting.max_num_seqs == 512)
    assert sequences < first(asked, lambda each: each.engines > 1)


def test_sequences_come_before_engines_for_a_large_model() -> None:
    start = Setting(512, 16_384, slots=2)
    search, asked = walked(large_model, start, Card(2, has_gulps=True, has_capture=True))
    sequences = first(asked, lambda each: each.setting.max_num_seqs == 1024)
    assert sequences < first(asked, lambda each: each.engines > 1)
    assert search.best is not None
    assert search.best.candidate.setting.graph_size >= 1024


def test_graphs_are_captured_for_more_than_512_sequences_only() -> None:
    start = Setting(512, 16_384, slots=2)
    _, asked = walked(large_model, start, Card(2, has_gulps=True, has_capture=True))
    for setting in {each.setting for each in asked}:
        assert setting.graph_size == (setting.max_num_seqs if setting.max_num_seqs > 512 else 0)


def test_start_with_too_small_graphs_is_tried_with_larger_ones() -> None:
    start = Setting(1024, 16_384, slots=1)
    _, asked = walked(large_model, start, Card(1, has_gulps=True, has_capture=True))
    assert first(asked, lambda each: each.setting.graph_size == 1024) < 10**6


def test_flags_of_the_user_about_graphs_stand() -> None:
    start = Setting(1024, 16_384, slots=1)
    _, asked = walked(large_model, start, Card(1, has_gulps=True, has_capture=False))
    assert {each.setting.graph_size for each in asked} == {0}


def test_gulps_are_compared_with_plain_refilling_before_any_other_engine() -> None:
    start = Setting(512, 16_384, slots=4)
    _, asked = walked(small_model, start, Card(4, has_gulps=True, has_capture=True))
    plain = first(asked, lambda each: each.refill == PLAIN)
    assert plain < first(asked, lambda each: each.engines > 1)
    assert asked[plain].in_flight == 564  # one waits in the engine for each ten that run


def test_engine_that_loses_with_gulps_gets_none() -> None:
    def speed(candidate: Candidate) -> float:
        return 900.0 if candidate.refill == AUTO else 1000.0

    search, _ = walked(speed, Setting(64, 2048), Card(1, has_gulps=True))
    assert search.best is not None
    assert search.best.candidate.refill == PLAIN


def test_size_of_a_gulp_is_tried_at_the_end() -> None:
    def speed(candidate: Candidate) -> float:
        factor = {PLAIN: 1.0, AUTO: 1.2}.get(candidate.refill, 1.1 + candidate.refill / 100)
        return factor * min(candidate.filled, 64)

    search, _ = walked(speed, Setting(64, 2048), Card(1, has_gulps=True))
    assert search.best is not None
    assert search.best.candidate.refill == 16  # twice an eighth


def test_nothing_of_a_card_is_tried_on_a_cpu() -> None:
    _, asked = walked(lambda each: each.filled, Setting(64, 2048), Card())
    assert {(each.engines, each.refill, each.setting.graph_size) for each in asked} == {
        (1, PLAIN, 0)
    }


def test_engines_end_where_two_in_a_row_gain_nothing() -> None:
    search, asked = walked(lambda _: 1000.0, Setting(64, 2048, slots=8), Card(8, has_gulps=True))
    assert max(each.engines for each in asked) == 3
    assert search.best is not None
    assert search.best.candidate.engines == 1


def test_what_has_no_time_is_told_and_the_rest_is_tried() -> None:
    start = Setting(512, 16_384, slots=4)

    def is_short(candidate: Candidate) -> bool:
        return candidate.engines <= 2 and candidate.setting == start

    search, _ = walked(small_model, start, Card(4, True, True), is_short)
    assert search.best is not None
    assert search.best.candidate.engines == 2
    assert NO_TIME in search.pruned.values()
    assert {point.candidate.refill for point in search.points} >= {AUTO, PLAIN}


@pytest.mark.parametrize(
    ("kind", "flags", "max_engines", "slots"),
    [
        ("cuda", [], None, 4),
        ("cuda", [], 6, 6),
        ("cuda", [], 1, 1),
        ("cuda", ["--tensor-parallel-size", "2"], None, 1),
        ("cuda", ["--tensor-parallel-size", "1"], None, 4),
        ("cuda", ["-tp=2"], 2, 2),
        ("cuda", ["--kv-cache-memory-bytes", "9"], None, 1),
        ("cuda", ["--gpu-memory-utilization", "0.2"], None, 1),
        ("cpu", [], None, 1),
        ("cpu", [], 2, 2),
        ("rocm", [], None, 1),
    ],
)
def test_engines_to_try_follow_from_device_and_flags(
    kind: str, flags: list[str], max_engines: int | None, slots: int, tmp_path: Path
) -> None:
    config: dict[str, Any] = {"hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 49_152}
    config |= {"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    devices = {"kind": kind, "memory_bytes": 150 * 10**9}
    argv = ["--model", str(tmp_path), *flags]
    assert num_slots(devices, argv, named("lognormal", 64), max_engines) == slots

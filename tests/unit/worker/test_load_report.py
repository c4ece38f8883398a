"""What a worker says about its engine: rates over a window, and no rate without counters."""

from gristmill.shared.worker_load import WorkerLoad
from gristmill.worker.engine.interface import EngineStats
from gristmill.worker.load_report import RATE_WINDOW_S, LoadReport


class Counters:
    """An engine's counters, as a test sets them."""

    def __init__(self) -> None:
        self.stats = EngineStats()

    def __call__(self) -> EngineStats:
        return self.stats


def sampled(report: LoadReport, now_s: float, num_running: int = 1) -> WorkerLoad:
    report.sample(now_s, num_running, None)
    load = WorkerLoad.parse(report.note)
    assert load is not None
    return load


def test_rates_are_differences_over_the_window() -> None:
    counters = Counters()
    report = LoadReport(counters)
    counters.stats = EngineStats(prompt_tokens=100, output_tokens=10, kv_cache_usage=0.5)
    assert sampled(report, 0).output_tokens_per_s == 0
    counters.stats = EngineStats(prompt_tokens=400, output_tokens=70, kv_cache_usage=0.5)
    load = sampled(report, 3)
    assert (load.prompt_tokens_per_s, load.output_tokens_per_s) == (100, 20)
    assert load.kv_cache_usage == 0.5


def test_rate_of_an_idle_engine_falls_to_zero() -> None:
    counters = Counters()
    report = LoadReport(counters)
    for now_s, tokens in ((0, 1), (3, 100), (6, 100), (6 + RATE_WINDOW_S, 100)):
        counters.stats = EngineStats(output_tokens=tokens)
        load = sampled(report, now_s)
    assert load.output_tokens_per_s == 0


def test_restarted_engine_gives_no_negative_rate() -> None:
    counters = Counters()
    report = LoadReport(counters)
    for now_s, tokens in ((0, 1000), (3, 2000), (6, 5), (9, 35)):
        counters.stats = EngineStats(output_tokens=tokens)
        load = sampled(report, now_s)
        assert (load.output_tokens_per_s or 0) >= 0
    assert load.output_tokens_per_s == 10


def test_engine_without_counters_has_no_rate() -> None:
    load = sampled(LoadReport(Counters()), 3, num_running=7)
    assert load == WorkerLoad(num_running=7)


def test_note_that_cannot_be_read_is_no_load() -> None:
    for note in (None, b"", b"{", b"[]", b"7"):
        assert WorkerLoad.parse(note) is None
    odd = WorkerLoad.parse(
        b'{"v":9,"num_running":"x","kv_cache_usage":7,"waits_for":"' + b"w" * 999 + b'"}'
    )
    assert odd is not None
    assert (odd.num_running, odd.kv_cache_usage, len(odd.waits_for)) == (0, 1.0, 200)

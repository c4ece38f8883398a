"""Series of several workers: one family for each name, labelled by engine."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gristmill.worker.parent.merged_metrics import merged


def text_of_one(value: int) -> str:
    registry = CollectorRegistry()
    Counter("ended", "Ended", ["status"], registry=registry).labels("ok").inc(value)
    Gauge("running", 'Runs "now"', registry=registry).set(value)
    Gauge("vllm:running", "vLLM's", ["engine"], registry=registry).labels("7").set(value)
    Histogram("wait", "Waits", registry=registry, buckets=(1,)).observe(value)
    return generate_latest(registry).decode()


class Served:
    """A registry's collector that serves merged texts."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def lines(self) -> list[str]:
        registry = CollectorRegistry()
        registry.register(self)  # type: ignore[arg-type]  # it has what a collector needs
        return generate_latest(registry).decode().splitlines()

    def collect(self) -> object:
        return merged(self._texts)


def test_series_of_two_engines_stand_in_one_family() -> None:
    lines = Served({"0": text_of_one(3), "1": text_of_one(4)}).lines()
    assert [line for line in lines if line.startswith(("# TYPE ended_total", "ended_total"))] == [
        "# TYPE ended_total counter",
        'ended_total{engine="0",status="ok"} 3.0',
        'ended_total{engine="1",status="ok"} 4.0',
    ]
    assert len([line for line in lines if line.startswith("# TYPE wait histogram")]) == 1
    assert 'wait_bucket{engine="1",le="+Inf"} 1.0' in lines


def test_label_that_vllm_uses_too_keeps_its_value_under_another_name() -> None:
    lines = Served({"2": text_of_one(3)}).lines()
    assert 'vllm:running{engine="2",exported_engine="7"} 3.0' in lines


def test_worker_without_an_answer_leaves_the_others() -> None:
    lines = Served({"0": "", "1": text_of_one(4)}).lines()
    assert [line for line in lines if line.startswith("running")] == ['running{engine="1"} 4.0']

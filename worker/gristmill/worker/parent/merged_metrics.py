"""Collect the series of several workers, each labelled by its engine."""

import http.client
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gristmill.worker.parent.child import Child

log = structlog.get_logger()

LABEL = "engine"

TAKEN_LABEL = "exported_engine"
"""New name of a label `engine` that a worker's series has already; Prometheus would choose it too.

vLLM numbers the data-parallel ranks of one engine with it.
"""

SCRAPE_S = 3.0
"""Most seconds for the answer of one worker. Prometheus waits 10 s for all together."""


class MergedMetrics(Collector):
    """Collects the series of the workers that answer, and the state of all.

    Args:
        children: The workers.
    """

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each name, with the series of all workers."""
        yield from self._states()
        with ThreadPoolExecutor(len(self._children)) as threads:
            texts = list(threads.map(_scraped, self._children))
        yield from merged(
            {child.engine: text for child, text in zip(self._children, texts, strict=True)}
        )

    def _states(self) -> Iterator[Metric]:
        ready = GaugeMetricFamily(
            "gristmill_engine_ready", "1 while the engine is ready", labels=[LABEL]
        )
        restarts = CounterMetricFamily(
            "gristmill_worker_restarts", "Restarts of the worker's process", labels=[LABEL]
        )
        for child in self._children:
            ready.add_metric([child.engine], child.is_ready)
            restarts.add_metric([child.engine], child.num_restarts)
        yield from (ready, restarts)


def merged(texts: dict[str, str]) -> Iterator[Metric]:
    """Merge the metrics of several workers.

    Args:
        texts: Number of the engine -> metrics in Prometheus's text format.
    """
    families: dict[str, Metric] = {}
    for engine, text in texts.items():
        for family in text_string_to_metric_families(text):
            samples = [
                sample._replace(labels=_labelled(sample.labels, engine))
                for sample in family.samples
            ]
            family.samples = samples
            families.setdefault(family.name, family)
            if families[family.name] is not family:
                families[family.name].samples += samples
    yield from families.values()


def _labelled(labels: dict[str, str], engine: str) -> dict[str, str]:
    rest = {TAKEN_LABEL if name == LABEL else name: value for name, value in labels.items()}
    return {LABEL: engine, **rest}


def _scraped(child: Child) -> str:
    """Return the metrics of one worker; empty if it does not answer: the others' must not fail with it."""
    port = child.health_port
    if port is None:
        return ""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SCRAPE_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException) as error:
        log.warning("metrics.missing", engine=child.engine, error=str(error))
        return ""
    finally:
        connection.close()

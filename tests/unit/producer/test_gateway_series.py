"""The names of the gateway's series of Prometheus."""

import importlib
import pkgutil

from prometheus_client.metrics import MetricWrapperBase

from gristmill.producer import gateway


def test_all_series_begin_with_the_name_of_the_gateway() -> None:
    names = []
    for found in pkgutil.iter_modules(gateway.__path__, f"{gateway.__name__}."):
        values = vars(importlib.import_module(found.name)).values()
        collectors = [value for value in values if isinstance(value, MetricWrapperBase)]
        names += [metric.name for each in collectors for metric in each.collect()]
    assert "gristmill_gateway_submitted_requests" in names
    assert [name for name in names if not name.startswith("gristmill_gateway_")] == []

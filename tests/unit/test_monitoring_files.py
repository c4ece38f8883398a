"""What the dashboard, the alerts and docs/operations.md must agree on, with each other and with the code."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
PORTIONS = ("shared", "producer", "worker")
SERIES = re.compile(
    r'(?:(?:Counter|Gauge|Histogram|Family|_gauge)\(\s*|^    )"(gristmill_[a-z0-9_]+)"',
    re.MULTILINE,
)
"""The name in the definition of a series, or at the beginning of a row of a table of them."""

PARTS_OF_HISTOGRAMS = ("_bucket", "_sum", "_count")


def objects(*path: str) -> list[dict[str, Any]]:
    return [*yaml.safe_load_all(K8S.joinpath(*path).read_text())]


def alerts() -> list[dict[str, Any]]:
    (rule,) = objects("monitoring", "alerts.yaml")
    found: list[dict[str, Any]] = rule["spec"]["groups"][0]["rules"]
    return found


def expressions() -> list[str]:
    panels = json.loads((K8S / "monitoring" / "dashboard.json").read_text())["panels"]
    targets = [target for panel in panels for target in panel.get("targets", [])]
    return [item["expr"] for item in (*targets, *alerts())]


def exported() -> set[str]:
    """Return the names of all series in the code, counters without `_total`."""
    sources = (path for portion in PORTIONS for path in (ROOT / portion).rglob("*.py"))
    return {name for path in sources for name in SERIES.findall(path.read_text())}


def without_suffix(series: str) -> str:
    for suffix in ("_total", *PARTS_OF_HISTOGRAMS):
        series = series.removesuffix(suffix)
    return series


def test_dashboard_and_alerts_ask_for_series_that_we_export() -> None:
    asked = {name for each in expressions() for name in re.findall(r"gristmill_[a-z0-9_]+", each)}
    assert asked
    assert {without_suffix(name) for name in asked} - exported() == set()


def test_the_page_of_operations_lists_every_series() -> None:
    listed = set(re.findall(r"`(gristmill_[a-z0-9_]+)", OPERATIONS))
    assert exported() - {without_suffix(name) for name in listed} == set()


def test_every_alert_leads_to_a_section() -> None:
    headings = re.findall(r"^#+ (.*)$", OPERATIONS, re.MULTILINE)
    sections = {f"docs/operations.md#{heading.lower().replace(' ', '-')}" for heading in headings}
    links = {each["alert"]: each["annotations"]["runbook_url"] for each in alerts()}
    assert {name: link for name, link in links.items() if link not in sections} == {}
    assert [name for name in links if f"`{name}`: " not in OPERATIONS] == []


def test_prometheus_finds_the_port_of_each_pod() -> None:
    deployments = {
        "gristmill-worker": ("base/worker", "worker.yaml"),
        "gristmill-gateway": ("batches", "gateway.yaml"),
        "gristmill-steward": ("batches/steward", "steward.yaml"),
    }
    watched: dict[str, str] = {}
    for monitor in objects("monitoring", "scrape.yaml"):
        selector = monitor["spec"]["selector"]
        names = [*selector.get("matchLabels", {}).values()]
        names += [name for each in selector.get("matchExpressions", ()) for name in each["values"]]
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        watched |= dict.fromkeys(names, endpoint["port"])
    for name, path in deployments.items():
        pod = next(item for item in objects(*path) if item["kind"] == "Deployment")["spec"][
            "template"
        ]
        (port,) = pod["spec"]["containers"][0]["ports"]
        assert watched[name] == port["name"]
        assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
        assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == name
    assert len(watched) == 3

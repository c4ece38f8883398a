"""Serve the probes and the metrics of several workers as those of one.

/healthz fails only once the parent has given up. It restarts a worker that hangs or died itself.
/readyz succeeds if at least one engine is ready. /metrics has the series of all workers, labelled
by engine, and the parent's own.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, make_wsgi_app

from gristmill.shared.probes import ProbeServer
from gristmill.worker.parent.child import Child
from gristmill.worker.parent.merged_metrics import MergedMetrics


class ParentProbes(ProbeServer):
    """Serves the probes of a parent until closed.

    Args:
        children: The workers.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free port, and the attribute `port` says which.

    Raises:
        OSError: Another process uses the port.
    """

    def __init__(self, children: Sequence[Child], host: str, port: int) -> None:
        self._children = children
        self._given_up: str | None = None
        registry = CollectorRegistry()
        registry.register(MergedMetrics(children))
        probes = {"/healthz": lambda: self._given_up, "/readyz": self._unready_reason}
        super().__init__(host, port, probes, {"/metrics": make_wsgi_app(registry)})

    def note_given_up(self, reason: str) -> None:
        """Note that the parent has given up."""
        self._given_up = reason

    def _unready_reason(self) -> str | None:
        reasons = {child.engine: child.unready_reason for child in self._children}
        if self._given_up or None in reasons.values():
            return self._given_up
        return "; ".join(f"engine {engine}: {reason}" for engine, reason in reasons.items())

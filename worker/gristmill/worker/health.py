"""Serve /healthz, /readyz and /metrics over HTTP, from a separate thread.

/healthz fails only while the worker's event loop does not run. /readyz also fails while the worker
starts or drains, and while Redis or the engine does not answer. /metrics has Gristmill's series and
vLLM's own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import REGISTRY, make_wsgi_app

from gristmill.shared.errors import SettingsError
from gristmill.shared.probes import ProbeServer
from gristmill.worker.liveness import Liveness


@contextmanager
def port_errors(port: int) -> Iterator[None]:
    """Turn the error of probes that cannot listen on their port into a SettingsError."""
    try:
        yield
    except OSError as error:
        message = (
            f"the probes cannot listen on port {port} ({error});"
            " set GRISTMILL_HEALTH_PORT (0 picks a free port)"
        )
        raise SettingsError(message) from error


class HealthServer(ProbeServer):
    """Serves the probes until closed.

    Args:
        liveness: Signs of life that the probes report.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free port, and the attribute `port` says which.

    Raises:
        OSError: Another process uses the port.
    """

    def __init__(self, liveness: Liveness, host: str, port: int) -> None:
        probes = {"/healthz": liveness.stalled_reason, "/readyz": liveness.unready_reason}
        super().__init__(host, port, probes, {"/metrics": make_wsgi_app(REGISTRY)})

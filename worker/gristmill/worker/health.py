"""The probes: /healthz, /readyz and /metrics on a small HTTP server in a thread of its own.

/healthz fails when the loop or the engine makes no progress, and only then; /readyz also while
starting, draining, or while Redis is away. /metrics carries Gristmill's series and vLLM's own.
"""

from prometheus_client import REGISTRY, make_wsgi_app

from gristmill.shared.probes import ProbeServer
from gristmill.worker.liveness import Liveness


class HealthServer(ProbeServer):
    """Serves the probes until closed.

    Args:
        liveness: What they tell.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free port, and the attribute `port` says which.

    Raises:
        OSError: The port is taken.
    """

    def __init__(self, liveness: Liveness, host: str, port: int) -> None:
        probes = {"/healthz": liveness.stalled_reason, "/readyz": liveness.unready_reason}
        super().__init__(host, port, probes, {"/metrics": make_wsgi_app(REGISTRY)})

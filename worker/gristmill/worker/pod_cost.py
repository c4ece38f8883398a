"""Tell Kubernetes which worker to remove first: write the deletion cost of this worker's own pod.

`serve` and the parent of several workers call `start_pod_cost`; without GRISTMILL_POD_NAME it starts nothing. A
ReplicaSet that shrinks deletes pods with a low `controller.kubernetes.io/pod-deletion-cost` first, so idle pods go
before busy ones. The cost is a hint: the worker runs on if it cannot be written. k8s/examples/two-models has the
service account and its Role.
"""

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import aiohttp
import structlog
from yarl import URL

from gristmill.shared.errors import SettingsError

log = structlog.get_logger(__name__)

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
"""https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost"""

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder in which Kubernetes mounts token, namespace and CA of the pod's service account."""

LOOK_INTERVAL_S = 5.0
"""Seconds between two looks at the load. An autoscaler decides every 15 s, so the cost is never old."""

CALL_LIMIT_S = 5.0
"""Most seconds for one write."""

_REMEDIES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "mount the token of the pod's service account",
    HTTPStatus.FORBIDDEN: "allow the pod's service account the verb patch on pods of its namespace",
    HTTPStatus.NOT_FOUND: "set GRISTMILL_POD_NAME from the field metadata.name",
}


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod of this worker, and how to reach the API server.

    Attributes:
        url: The pod's URL at the API server.
        account: Folder with `namespace`, `token` and `ca.crt`.
    """

    url: URL
    account: Path

    @classmethod
    def of_this_process(cls, name: str, account: Path = ACCOUNT) -> "Pod":
        """Return the pod of this process, as Kubernetes describes it to each container.

        Args:
            name: Name of the pod.
            account: Folder of the service account.

        Raises:
            SettingsError: This is no pod, or it has no service account.
        """
        try:
            host, port = (os.environ[f"KUBERNETES_SERVICE_{word}"] for word in ("HOST", "PORT"))
            namespace, *_ = [
                (account / file).read_text() for file in ("namespace", "token", "ca.crt")
            ]
        except (KeyError, OSError) as error:
            raise SettingsError(
                f"GRISTMILL_POD_NAME is {name!r}, and {error} is missing; run the worker in a pod with"
                " automountServiceAccountToken: true, or unset GRISTMILL_POD_NAME"
            ) from None
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        return cls(URL.build(scheme="https", host=host, port=int(port), path=path), account)

    async def write_cost(self, session: aiohttp.ClientSession, cost: int) -> None:
        """Write the cost into the pod's annotations, which keeps all others.

        Raises:
            aiohttp.ClientError, OSError: The API server does not answer in `CALL_LIMIT_S`, or refuses.
        """
        token = (self.account / "token").read_text()  # Kubernetes replaces it every hour
        patch = {"metadata": {"annotations": {ANNOTATION: str(cost)}}}
        headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/merge-patch+json",
        }
        async with session.patch(self.url, json=patch, headers=headers) as reply:
            reply.raise_for_status()


def start_pod_cost(name: str | None, num_running: Callable[[], int]) -> asyncio.Task[None] | None:
    """Start to keep the deletion cost of this process's pod; return the task, or None without a name.

    Args:
        name: Name of the pod; None or "" writes no cost.
        num_running: Returns how many requests the pod's engines hold.

    Raises:
        SettingsError: This is no pod, or it has no service account.
    """
    if not name:
        return None
    return asyncio.create_task(keep_pod_cost(Pod.of_this_process(name), num_running))


async def keep_pod_cost(
    pod: Pod, num_running: Callable[[], int], interval_s: float = LOOK_INTERVAL_S
) -> None:
    """Keep the deletion cost of the pod up to date until cancelled; log a failure once.

    Args:
        pod: The pod.
        num_running: Returns how many requests the pod's engines hold.
        interval_s: Seconds between two looks at the load.
    """
    trust = ssl.create_default_context(cafile=pod.account / "ca.crt")
    limit = aiohttp.ClientTimeout(total=CALL_LIMIT_S)
    connector = aiohttp.TCPConnector(ssl=trust, force_close=True)
    written, failure = None, ""
    async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
        while True:
            cost = cost_of(num_running())
            if is_worth_a_write(written, cost):
                try:
                    await pod.write_cost(session, cost)
                    written, failure = cost, ""
                except (aiohttp.ClientError, OSError) as error:
                    failure = _told_once(error, failure)
            await asyncio.sleep(interval_s)


def cost_of(num_running: int) -> int:
    """Return 0 for an idle pod, else 1 for one request, and 1 more for each doubling."""
    return num_running.bit_length()


def is_worth_a_write(written: int | None, cost: int) -> bool:
    """Return whether to write a cost.

    Kubernetes asks for rare updates, as each is a write of its database. So a busy pod is written only
    after two doublings: a load near a power of two causes no writes. The change from or to idle counts at once.

    Args:
        written: The cost that the pod has; None if unknown.
        cost: The cost of the present load.
    """
    if written is None or not written or not cost:
        return written != cost
    return abs(cost - written) > 1


def _told_once(error: Exception, told: str) -> str:
    """Log why a cost could not be written, unless the log says so already; return the reason."""
    reason, remedy = f"{type(error).__name__}: {error}"[:500], "reach the API server from this pod"
    if isinstance(error, aiohttp.ClientResponseError):
        reason = f"the API server answered {error.status} {error.message}"
        remedy = _REMEDIES.get(error.status, "look at the API server's log")
    if reason != told:
        log.warning("pod_cost.not_written", error=reason, remedy=remedy)
    return reason

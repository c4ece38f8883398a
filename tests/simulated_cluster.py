"""A Deployment of pods with a card each, and KEDA with the HPA that it makes, in simulated time.

The rules are those of Kubernetes 1.34 and KEDA 2.18, with their defaults:

- HPA, every 15 s: ceil(metric / target) pods; none if that is within 10 % of the present number. It adds at most
  4 pods or 100 % per look, the larger of both. It removes pods only to the largest wish of the last 300 s.
- KEDA, every 30 s: from 0 to 1 pod if the metric is above 0; to 0 pods once it has been 0 for 300 s.
- A ReplicaSet first deletes pods that are not ready, then those of the lowest deletion cost, then the newest.
- Prometheus reads the metric every 30 s, which a metric from it does not show earlier. The list is read directly.
"""

import math
from collections import deque
from dataclasses import dataclass, field

from gristmill.worker.pod_cost import cost_of

HPA_S, KEDA_S, COOLDOWN_S, STABLE_S = 15.0, 30.0, 300.0, 300.0
TOLERANCE = 0.1
START_S = 180.0
"""Seconds from a card until a pod is ready: image on the node, weights on a shared volume, graphs in the cache."""


@dataclass(eq=False)
class Pod:
    """One worker pod.

    Attributes:
        created_s: Moment of its order.
        card_s: Moment at which it got its card; None while it waits for one.
        stopping_s: Moment of its SIGTERM; None before.
        num_running: Requests in its engine.
    """

    created_s: float
    card_s: float | None = None
    stopping_s: float | None = None
    num_running: int = 0

    @property
    def is_stopping(self) -> bool:
        return self.stopping_s is not None

    def is_ready(self, now_s: float) -> bool:
        return self.card_s is not None and now_s >= self.card_s + START_S


@dataclass
class Deployment:
    """Pods on a fixed number of cards. A draining pod keeps its card."""

    num_cards: int
    drain_s: float
    has_cost: bool
    pods: list[Pod] = field(default_factory=list)
    _card_seconds: float = 0
    _now_s: float = 0

    @property
    def ready(self) -> list[Pod]:
        """Pods that work: ready ones, and those that drain."""
        return [pod for pod in self.pods if pod.is_ready(self._now_s)]

    @property
    def holding_cards(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.card_s is not None]

    def scale(self, replicas: int, now_s: float) -> None:
        """Order or stop pods until `replicas` of them are not stopping."""
        live = [pod for pod in self.pods if not pod.is_stopping]
        self.pods += [Pod(now_s) for _ in range(replicas - len(live))]
        for pod in sorted(live, key=self._rank)[: max(0, len(live) - replicas)]:
            pod.stopping_s = now_s

    def _rank(self, pod: Pod) -> tuple[bool, int, float]:
        cost = cost_of(pod.num_running) if self.has_cost else 0
        return (pod.is_ready(self._now_s), cost, -pod.created_s)

    def advance(self, now_s: float) -> list[Pod]:
        """Give out free cards and return the pods that end now."""
        self._now_s = now_s
        gone = [pod for pod in self.pods if self._has_ended(pod, now_s)]
        for pod in gone:
            self.pods.remove(pod)
            self._card_seconds += now_s - (now_s if pod.card_s is None else pod.card_s)
        for pod in self.pods:
            if pod.card_s is None and len(self.holding_cards) < self.num_cards:
                pod.card_s = now_s
        return gone

    def pod_seconds(self, now_s: float) -> float:
        """Seconds for which pods have held a card."""
        held = (now_s - pod.card_s for pod in self.pods if pod.card_s is not None)
        return self._card_seconds + sum(held)

    def _has_ended(self, pod: Pod, now_s: float) -> bool:
        if pod.stopping_s is None:
            return False
        return not pod.num_running or now_s >= pod.stopping_s + self.drain_s


class Autoscaler:
    """KEDA and its HPA over one metric; `target` is the metric's value for one pod."""

    def __init__(self, target: float, max_pods: int) -> None:
        self._target, self._max_pods = target, max_pods
        self._replicas = 0
        self._active_s = -math.inf
        self._looked_s = -math.inf
        self._wishes: deque[tuple[float, int]] = deque()

    def is_due(self, now_s: float) -> bool:
        """Return whether HPA or KEDA looks at the metric now."""
        return now_s >= self._looked_s + HPA_S

    def replicas(self, value: float, now_s: float) -> int:
        """Return the number of pods to run from now on."""
        self._looked_s = now_s
        if now_s % KEDA_S == 0:
            self._activate(value, now_s)
        if self._replicas:
            self._replicas = self._stabilized(value, now_s)
        return self._replicas

    def _activate(self, value: float, now_s: float) -> None:
        if value > 0:
            self._active_s = now_s
            self._replicas = self._replicas or 1
        elif now_s > self._active_s + COOLDOWN_S:
            self._replicas = 0
            self._wishes.clear()

    def _stabilized(self, value: float, now_s: float) -> int:
        now = self._replicas
        ratio = value / (self._target * now)
        wish = now if abs(ratio - 1) <= TOLERANCE else math.ceil(value / self._target)
        wish = min(self._max_pods, max(1, wish))
        self._wishes.append((now_s, wish))
        while self._wishes[0][0] < now_s - STABLE_S:
            self._wishes.popleft()
        if wish > now:
            return min(wish, max(now + 4, now * 2))
        return min(now, max(wish for _, wish in self._wishes))

"""What the live workers of a queue serve, and the refusal of requests that none of them serves.

Producers check before they submit: a worker would refuse an unknown model too, but long afterwards. A queue
without workers takes every request, since workers may come later. `fleet_cache.py` reads the fleet.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from gristmill.shared.errors import NotServed
from gristmill.shared.queue_access import QueueAccess
from gristmill.shared.request import ENDPOINTS, Request
from gristmill.shared.worker_facts import number_of, read_facts

ALL_MODELS = "GET /v1/models lists the models of all queues"
"""End of the refusal of a model by a gateway of several queues."""

NUM_NAMED = 10
"""Models that an error or a line names; it counts the others."""


@dataclass(frozen=True, slots=True)
class Served:
    """What one worker serves, as it registered.

    Attributes:
        models: Models, adapters included; empty if the worker does not say.
        endpoints: Paths that it answers; empty if it does not say.
        max_model_len: Prompt and output tokens of a request; 0 if it does not say.
    """

    models: Sequence[str]
    endpoints: Sequence[str]
    max_model_len: int

    @classmethod
    def parse(cls, models: bytes | None, endpoints: bytes | None, length: bytes | None) -> Self:
        """Read three fields of `worker:<worker>`."""
        return cls(_names(models), _names(endpoints), number_of(length))

    def answers(self, model: str, endpoint: str) -> bool:
        """Return whether the worker serves requests for a model (or any, if empty) and an endpoint."""
        return endpoint in self.endpoints and (not model or model in self.models)

    def in_words(self) -> str:
        """Return the models for people: a few names and the number of the others."""
        return _shortened(self.models) or "models that it does not name"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The models and endpoints that the live workers of a queue serve.

    Attributes:
        queue: Name of the queue.
        workers: Live worker -> what it serves.
        max_model_len: Each served model, adapters included -> prompt and output tokens; 0 if no worker says.
        endpoints: Paths that some worker answers.
        is_known: True if every worker says what it serves; otherwise no request is refused.
    """

    queue: str
    workers: Mapping[str, Served]
    max_model_len: Mapping[str, int]
    endpoints: frozenset[str]
    is_known: bool

    def answers(self, model: str, endpoint: str) -> bool:
        """Return whether some worker serves requests for a model (or any, if empty) and an endpoint."""
        return any(served.answers(model, endpoint) for served in self.workers.values())

    def check(self, request: Request) -> None:
        """Check that some worker serves a request, or that there are no workers yet.

        Raises:
            NotServed: There are workers, but none serves it.
        """
        if refusal := self.refusal(request):
            raise refusal

    def refusal(self, request: Request) -> NotServed | None:
        """Return the error for a request that no worker serves, or None."""
        if not self.is_known:
            return None
        if request.model and request.model not in self.max_model_len:
            what = f"model {request.model[:200]!r}"
            words = self._words(what, sorted(self.max_model_len))
            return NotServed(words, "model_not_found", request_id=request.id)
        if request.endpoint not in self.endpoints:
            words = self._words(request.endpoint, sorted(self.endpoints.intersection(ENDPOINTS)))
            return NotServed(words, "endpoint_not_served", request_id=request.id)
        return None

    def _words(self, what: str, served: list[str]) -> str:
        return (
            f"no worker of queue {self.queue} serves {what}; they serve"
            f" {_shortened(served)}. Ask for one of these, or have the operator start a worker for it"
        )


def queue_serving(fleets: Iterable[Fleet], model: str) -> str | None:
    """Return the first of several queues whose live workers serve a model, or None."""
    return next((fleet.queue for fleet in fleets if model in fleet.max_model_len), None)


async def read_served(queue: QueueAccess, workers: Iterable[str]) -> dict[str, Served]:
    """Read what registered workers serve."""
    fields = ["models", "endpoints", "max_model_len"]
    facts = await read_facts(queue.redis, queue.keys, workers, fields)
    return {worker: Served.parse(*values) for worker, values in facts.items()}


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    return ", ".join(names[:NUM_NAMED]) + more


def _names(value: bytes | None) -> list[str]:
    return [name for name in (value or b"").decode(errors="replace").split(",") if name]

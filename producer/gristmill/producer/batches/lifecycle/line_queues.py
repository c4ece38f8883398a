"""The queues that may take the lines of a batch. Validation asks which queue takes a line, and whether it serves it."""

from collections.abc import Mapping, Sequence
from functools import partial

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.lifecycle.body_check import BodyCheck, body_check_of
from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.batches.objects import BatchRecord
from gristmill.shared.body_schemas import read_body_schemas
from gristmill.shared.errors import NotServed
from gristmill.shared.fleet import ALL_MODELS, Fleet, queue_serving
from gristmill.shared.fleet_cache import read_fleet
from gristmill.shared.request import Request


class LineQueues:
    """The queues of one batch, numbered from 1; number 1 is the batch's own queue.

    The gateway routes live requests by the same rule (`gateway/model_map.py`):

    1. A declared model goes to its queue.
    2. Any other model goes to the first queue whose live workers serve it.
    3. The batch's own queue takes the rest. If it has workers, it refuses a model that none of them serves.

    Args:
        fleets: Fleet of each queue, in the order of the numbers.
        declared: Model -> one of the queues, for models that may have no worker.
        body_checks: Check of the bodies of each queue; None to skip it.
        check_models: False refuses no model.
    """

    def __init__(
        self,
        fleets: Sequence[Fleet],
        declared: Mapping[str, str],
        body_checks: Sequence[BodyCheck | None],
        *,
        check_models: bool,
    ) -> None:
        self._fleets = fleets
        self._declared = declared
        self._body_checks = body_checks
        self._check_models = check_models
        self._numbers = {fleet.queue: number for number, fleet in enumerate(fleets, 1)}

    @property
    def is_single(self) -> bool:
        """True if every line goes to the batch's own queue."""
        return len(self._fleets) == 1

    def number_for(self, request: Request) -> int:
        """Return the number of the queue that takes a request."""
        if self.is_single or not request.model:
            return 1
        name = self._declared.get(request.model) or queue_serving(self._fleets, request.model)
        return self._numbers[name] if name else 1

    def refusal(self, request: Request, number: int) -> NotServed | None:
        """Return the error for a request that no worker of its queue serves, or None."""
        if not self._check_models or request.model in self._declared:
            return None
        refusal = self._fleets[number - 1].refusal(request)
        if refusal is None or self.is_single:
            return refusal
        return NotServed(f"{refusal.reason}. {ALL_MODELS}", refusal.code, request_id=request.id)

    def body_check(self, number: int) -> BodyCheck | None:
        """Return the check of the bodies that go to a queue; None to skip it."""
        return self._body_checks[number - 1]


def names_of_queues(record: BatchRecord, own: str) -> Sequence[str]:
    """Return the queues to which the lines of a batch may go; the first is its own."""
    return (own, *(name for name in record.queues if name != own))


async def read_line_queues(store: BatchStore, leased: LeasedBatch) -> LineQueues:
    """Read what the workers of a batch's queues serve, and their schemas if its bodies are checked."""
    record, settings = leased.record, store.settings
    queues = [
        store.of_queue(name).queue for name in names_of_queues(record, store.queue.keys.queue)
    ]
    fleets = [await read_fleet(queue) for queue in queues]
    checks: list[BodyCheck | None] = []
    for queue in queues:
        if record.mode == "lenient" or not settings.check_bodies:
            checks.append(None)
        else:
            schemas = await read_body_schemas(queue, record.endpoint)
            checks.append(await leased.run_blocking(partial(body_check_of, schemas)))
    return LineQueues(fleets, record.declared, checks, check_models=settings.check_models)

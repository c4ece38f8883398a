"""A steward imports no function that a job's hash in Redis names."""

import inspect

from rq.job import Job
from rq.serializers import JSONSerializer

from gristmill.producer.steward.job_registry import AllowedJob
from gristmill.producer.steward.rq_queue import rq_queue_of


def test_every_way_in_which_rq_imports_by_name_is_closed() -> None:
    """A release of RQ that imports in one more way fails here; see docs/decisions/0010-rq.md."""
    code = {name: getattr(member, "fget", member) for name, member in vars(Job).items()}
    importing = {
        name
        for name, found in code.items()
        if inspect.isfunction(found) and "import_attribute(" in inspect.getsource(found)
    }
    assert importing == {"func", "success_callback", "failure_callback", "stopped_callback"}
    assert importing <= vars(AllowedJob).keys()


def test_nothing_is_resolved_from_a_name() -> None:
    job = AllowedJob("x", connection=object(), serializer=JSONSerializer)  # type: ignore[arg-type]  # unused
    job.func_name = "os.system"
    assert job.func is job.success_callback is job.failure_callback is job.stopped_callback is None


def test_the_queue_is_named_after_ours_and_speaks_json() -> None:
    queue = rq_queue_of(object(), "default", AllowedJob)
    assert (queue.name, queue.serializer) == ("gristmill-default", JSONSerializer)

"""The compared queues: how to install each, how to run it, and how to count its done tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from gristmill.shared.keys import Keys

CONCURRENCY = 100
"""Tasks that a worker with one event loop runs at once; workers with threads or processes set their
own number."""


Databases = Mapping[int, Redis]
"""Connections to the server's databases 0 and 1."""


@dataclass(frozen=True, slots=True)
class Row:
    """One queue in one configuration.

    Args:
        name: Name in the table.
        module: Module in `tasks/`.
        worker: Command of the worker; its first word is in the `bin` folder of the environment.
        num_done: Returns how many of the given number of submitted tasks are done, from Redis
            alone.
        packages: Packages that pip installs; empty for Gristmill, which runs from this environment.
        environment: Additional variables of worker and producer.
    """

    name: str
    module: str
    worker: Sequence[str]
    num_done: Callable[[Databases, int], int]
    packages: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


SAFE = {"SAFE": "1"}


def results_of_database_1(databases: Databases, _: int) -> int:
    return _number(databases[1].dbsize())


def _number(reply: Any) -> int:
    return int(reply or 0)


def _of_zset(key: str) -> Callable[[Databases, int], int]:
    return lambda databases, _: _number(databases[0].zcard(key))


def _left_in_zset(key: str) -> Callable[[Databases, int], int]:
    return lambda databases, number: number - _number(databases[0].zcard(key))


def _succeeded(databases: Databases, _: int) -> int:
    return _number(databases[0].hget(Keys("default").stats, "succeeded"))


_RQ = ("rq", "worker", "--url", "{url}", "--quiet")
_CELERY = (
    "celery", "-A", "celery_tasks", "worker", "--loglevel", "error", "--without-mingle",
    "--without-gossip",
)  # fmt: skip
_DRAMATIQ = ("dramatiq", "dramatiq_tasks", "--processes", "1", "--threads", "8")
_SAQ_PACKAGES = ("saq[redis]", "typing-extensions")
"""saq 0.26.4 imports the second package but does not require it."""
_SAQ = ("saq", "saq_tasks.settings", "--quiet")
_TASKIQ = (
    "taskiq", "worker", "taskiq_tasks:broker", "--workers", "1", "--log-level", "ERROR",
    "--max-async-tasks", str(CONCURRENCY),
)  # fmt: skip
_STREAQ = ("streaq", "run", "streaq_tasks:worker")
_GRISTMILL = ("python", "{tasks}/gristmill_tasks.py")
_RQ_DONE = _of_zset("rq:finished:default")
_ARQ_DONE = _left_in_zset("arq:queue")
_SAQ_DONE = _left_in_zset("saq:default:incomplete")
_STREAQ_DONE = _of_zset("streaq:peers:index:results")

ROWS = (
    Row("Gristmill, bulk submit", "gristmill_tasks", _GRISTMILL, _succeeded),
    Row(
        "Gristmill, a submit a request",
        "gristmill_tasks",
        _GRISTMILL,
        _succeeded,
        environment={"SINGLE": "1"},
    ),
    Row(
        "RQ, SimpleWorker, enqueue_many",
        "rq_tasks",
        (*_RQ, "--worker-class", "rq.SimpleWorker"),
        _RQ_DONE,
        ("rq",),
    ),
    Row(
        "RQ, Worker (forks), Retry(3)",
        "rq_tasks",
        (
            *_RQ,
            "--maintenance-interval",
            "10",
            "--job-monitoring-interval",
            "5",
            "--worker-ttl",
            "30",
        ),
        _RQ_DONE,
        ("rq",),
        SAFE,
    ),
    Row(
        "Celery, solo, early ack",
        "celery_tasks",
        (*_CELERY, "--pool", "solo"),
        results_of_database_1,
        ("celery[redis]",),
    ),
    Row(
        "Celery, prefork 2, acks_late, visibility 10 s",
        "celery_tasks",
        (*_CELERY, "--pool", "prefork", "--concurrency", "2"),
        results_of_database_1,
        ("celery[redis]",),
        SAFE,
    ),
    Row(
        "dramatiq, 8 threads",
        "dramatiq_tasks",
        _DRAMATIQ,
        results_of_database_1,
        ("dramatiq[redis]",),
    ),
    Row(
        "dramatiq, 8 threads, maintenance at each call, heartbeat 10 s",
        "dramatiq_tasks",
        _DRAMATIQ,
        results_of_database_1,
        ("dramatiq[redis]",),
        SAFE,
    ),
    Row("arq, poll 10 ms, 500 a read", "arq_tasks", ("arq", "arq_tasks.Fast"), _ARQ_DONE, ("arq",)),
    Row("arq, job_timeout 5 s", "arq_tasks", ("arq", "arq_tasks.Safe"), _ARQ_DONE, ("arq",)),
    Row("SAQ", "saq_tasks", _SAQ, _SAQ_DONE, _SAQ_PACKAGES),
    Row("SAQ, 3 retries, sweep 5 s", "saq_tasks", _SAQ, _SAQ_DONE, _SAQ_PACKAGES, SAFE),
    Row("taskiq, list", "taskiq_tasks", _TASKIQ, results_of_database_1, ("taskiq", "taskiq-redis")),
    Row(
        "taskiq, stream, idle 10 s",
        "taskiq_tasks",
        _TASKIQ,
        results_of_database_1,
        ("taskiq", "taskiq-redis"),
        SAFE,
    ),
    Row("streaQ, enqueue_many", "streaq_tasks", _STREAQ, _STREAQ_DONE, ("streaq",)),
    Row(
        "streaQ, enqueue_many, idle 10 s",
        "streaq_tasks",
        _STREAQ,
        _STREAQ_DONE,
        ("streaq",),
        SAFE,
    ),
)

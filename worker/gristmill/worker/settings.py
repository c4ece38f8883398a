"""Define the settings of a worker, which extend the queue's. Only the entry point reads them."""

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from gristmill.shared.keys import QUEUE_NAME
from gristmill.shared.operations import Scheduling, SchedulingPolicy
from gristmill.shared.settings import QueueSettings, alias

SPARE = 1.1
"""Requests in flight for each sequence of the engine. The surplus waits in the engine, so a
finished request is replaced in the same step. Without it, an engine runs 7 % fewer requests than it
could (measured on an H200)."""

MAX_ENGINES = 64
"""Most engines of one group of devices; far above what pays, and below what a mistyped number starts."""

_SHARE = re.compile(rf"{QUEUE_NAME.pattern}(:[1-9][0-9]{{0,3}})?")


def _number_of_engines(value: Any) -> Any:
    """Return a number or `auto`; one error for both, instead of one for each part of the union."""
    if value == "auto" or (str(value).isdecimal() and 1 <= int(value) <= MAX_ENGINES):
        return value
    raise ValueError(f"{value} is no number of engines; write 1 to {MAX_ENGINES}, or auto")


def _health_path(value: Any) -> Any:
    if value and not str(value).startswith("/"):
        raise ValueError(f"{value} is no path; write /{value}, or nothing for GET /v1/models")
    return value


class WorkerSettings(QueueSettings):
    """Settings that say how a worker claims, runs, settles and stops."""

    queue: Annotated[
        str,
        Field(
            description="name of the queue, or several names with weights: `interactive:3,bulk:1`"
        ),
    ] = "default"
    vllm_url: Annotated[
        str | None,
        Field(
            validation_alias=alias("VLLM_URL"),
            description="URL of an OpenAI-compatible server, with or without /v1, to use instead of an engine in this process; unset runs vLLM in this process",
        ),
    ] = None
    vllm_api_key: Annotated[
        SecretStr | None,
        Field(
            validation_alias=alias("VLLM_API_KEY"),
            description="bearer token for the server at VLLM_URL; unset sends none",
        ),
    ] = None
    vllm_health_path: Annotated[
        str,
        BeforeValidator(_health_path),
        Field(
            description="path below VLLM_URL, without /v1, at which GET answers 2xx while the server works; empty asks /v1/models"
        ),
    ] = "/health"
    engines: Annotated[
        int | Literal["auto"],
        BeforeValidator(_number_of_engines),
        Field(
            description="engines on the same device or devices, each a worker with a process and a lease of its own, from 1 to 64. `auto` measures nothing and means 1"
        ),
    ] = 1
    devices: Annotated[
        str | None,
        Field(
            description="NVIDIA devices to use: `all`, or a list as in CUDA_VISIBLE_DEVICES: `0,1,2,3`. Each group of as many devices as the flags of an engine need gets GRISTMILL_ENGINES engines. On a CPU, `all` is one group. Unset leaves the choice to vLLM, for one group"
        ),
    ] = None
    batch_policy: Annotated[
        Literal["continuous", "sequential", "static", "dynamic", "bucketed"],
        Field(
            description="how requests are grouped: `continuous` feeds the engine as it has room, the others wait for a whole batch"
        ),
    ] = "continuous"
    batch_size: Annotated[
        int,
        Field(
            ge=1,
            le=4096,
            validation_alias=alias("BATCH_SIZE"),
            description="most requests in one claim; with the other policies, requests in one batch",
        ),
    ] = 64
    batch_timeout_ms: Annotated[
        float,
        Field(
            ge=0,
            le=600_000,
            validation_alias=alias("BATCH_TIMEOUT_MS"),
            description="longest wait to fill a batch, from its first request; 0 takes what is there. With `continuous`, only an idle engine waits",
        ),
    ] = 0
    max_in_flight: Annotated[
        int | None,
        Field(
            ge=1,
            le=65_536,
            validation_alias=alias("MAX_IN_FLIGHT"),
            description="most requests in the engine, which may have room for fewer; unset is 1.1 times the engine's `max_num_seqs`",
        ),
    ] = None
    max_in_flight_bytes: Annotated[
        int,
        Field(
            ge=1024,
            description="most bytes of the bodies that a worker holds; one request more always fits. The worker's process needs about three times as much memory",
        ),
    ] = 256 * 2**20
    refill: Annotated[
        int | None,
        Field(
            ge=1,
            le=65_536,
            description="free places that a full engine waits for before it claims, with `continuous`; 1 turns gulps off. Unset computes the number for a CUDA engine with graphs and is 1 for other engines",
        ),
    ] = None
    high_share: Annotated[
        float,
        Field(
            ge=0,
            le=0.5,
            description="share of the engine's places, and of its KV cache, that only requests of the lane `high` may take, with `continuous`. 0 keeps none",
        ),
    ] = 0.0
    scheduling: Annotated[
        Scheduling | None,
        Field(
            description="order in which waiting requests are claimed. The worker that starts last sets it for all workers of the queue. Unset keeps the queue's order, which is `fair` at first"
        ),
    ] = None
    ageing_s: Annotated[
        float,
        Field(
            ge=0,
            le=86_400,
            description="time without service after which a lower priority gets a short turn; 0 never gives one. It has an effect only if GRISTMILL_SCHEDULING is set",
        ),
    ] = 10.0
    max_claim_tokens: Annotated[
        int,
        Field(
            ge=1, description="most estimated tokens of one claim; its first request always fits"
        ),
    ] = 2**40
    beat_s: Annotated[
        float | None,
        Field(
            gt=0,
            le=60,
            description="time between two heartbeats, a third of GRISTMILL_LEASE_S or less; unset is a fifth of it",
        ),
    ] = None
    until_empty: Annotated[
        bool,
        Field(
            description="whether the worker ends with 0 when its queues are empty, no worker has a request in flight and no producer is submitting; for jobs on a scheduler"
        ),
    ] = False
    first_request_timeout_s: Annotated[
        float,
        Field(
            ge=0,
            le=86_400,
            description="longest wait for a first request with GRISTMILL_UNTIL_EMPTY, from the moment at which the worker is ready. Then it ends with 0",
        ),
    ] = 300.0
    drain_timeout_s: Annotated[
        float,
        Field(
            ge=0,
            le=86_400,
            description="longest time to finish the requests in flight after SIGTERM. The rest goes back to the queue. A second signal ends the wait",
        ),
    ] = 60.0
    start_timeout_s: Annotated[
        float,
        Field(gt=0, description="longest start of the engine, and longest rebuild after its death"),
    ] = 1800.0
    stall_timeout_s: Annotated[
        float,
        Field(
            ge=1,
            description="longest time without progress. An engine that holds requests and yields no token for so long is rebuilt. An event loop that does not turn for so long fails the liveness probe",
        ),
    ] = 120.0
    max_request_s: Annotated[
        float,
        Field(
            gt=0, description="longest run of one request. Then it ends with the text that it has"
        ),
    ] = 3600.0
    max_repeated_tokens: Annotated[
        int,
        Field(
            ge=0,
            description="output tokens at the end of a request that may repeat one pattern. Then it ends with the text that it has. 0 allows any number. A server at VLLM_URL is not watched",
        ),
    ] = 1024
    max_result_bytes: Annotated[
        int,
        Field(
            ge=1024,
            le=256 * 2**20,
            validation_alias=alias("MAX_RESULT_BYTES"),
            description="largest answer of one request; a larger one becomes a failed result that says so",
        ),
    ] = 32 * 2**20
    max_stream_bytes: Annotated[
        int,
        Field(
            ge=1024,
            le=256 * 2**20,
            description="most bytes of the events of one streamed request. A stream that needs more ends with `stream_too_long`; its request runs on to its result",
        ),
    ] = 4 * 2**20
    stream_ttl_s: Annotated[
        int,
        Field(
            ge=1,
            le=24 * 3600,
            description="time for which Redis keeps the events of a request after the last one, at most GRISTMILL_RESULT_TTL_S",
        ),
    ] = 600
    backoff_base_s: Annotated[
        float,
        Field(
            gt=0,
            description="upper bound of the random wait before the first retry. It doubles with each retry. A braked worker waits so long before its first try",
        ),
    ] = 1.0
    backoff_max_s: Annotated[
        float,
        Field(
            gt=0,
            description="largest upper bound of the wait before a retry, and longest pause of a braked worker",
        ),
    ] = 60.0
    health_host: Annotated[
        str,
        Field(description="address on which the probes listen: `/healthz`, `/readyz`, `/metrics`"),
    ] = "0.0.0.0"  # noqa: S104  # a pod's
    health_port: Annotated[
        int, Field(ge=0, le=65_535, description="port of the probes; 0 picks a free port")
    ] = 8080
    pod_name: Annotated[
        str | None,
        Field(
            description="name of the worker's pod in Kubernetes. The worker then writes the pod's deletion cost, so that a scale-down removes idle pods first. Its service account needs the verb `patch` on pods. Unset writes none"
        ),
    ] = None
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        Field(
            description="lowest level of the JSON log on stdout, which has one `request.completed` per request"
        ),
    ] = "INFO"

    @model_validator(mode="after")
    def _check_beat(self) -> Self:
        if self.beat_interval_s > self.lease_s / 3:
            message = (
                f"a beat every {self.beat_interval_s:g} s is too slow for a lease of {self.lease_s:g} s: healthy"
                " workers would lose their requests; set GRISTMILL_BEAT_S to a third of GRISTMILL_LEASE_S or less"
            )
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _check_queue(self) -> Self:
        shares = self.queue.split(",")
        if not all(map(_SHARE.fullmatch, shares)) or len(self.queues) < len(shares):
            message = (
                f"GRISTMILL_QUEUE={self.queue} is no list of queues; write one name of at most 64 letters, digits, '.', '_'"
                " or '-', or several different names with weights from 1 to 9999: interactive:3,bulk:1"
            )
            raise ValueError(message)
        return self

    @property
    def queues(self) -> dict[str, int]:
        """The queues to serve, each with its weight; a name alone weighs 1."""
        shares = (share.partition(":") for share in self.queue.split(","))
        return {name: int(weight or 1) for name, _, weight in shares}

    @property
    def beat_interval_s(self) -> float:
        """Seconds between heartbeats."""
        return self.beat_s or self.lease_s / 5

    @property
    def scheduling_policy(self) -> SchedulingPolicy | None:
        """Order in which claims take waiting requests; None keeps the queue's order."""
        return SchedulingPolicy(self.scheduling, self.ageing_s) if self.scheduling else None

    def gulp(self, *, has_decode_graphs: bool) -> int | None:
        """Return the free places of a gulp; 1 for none, None to compute them.

        Args:
            has_decode_graphs: True if a step that only decodes is faster than others.
        """
        if self.batch_policy != "continuous":
            return 1
        return self.refill or (None if has_decode_graphs else 1)

    def in_flight_limit(self, max_num_seqs: int) -> int:
        """Return the most requests that the engine may hold; see `SPARE`."""
        return self.max_in_flight or math.ceil(SPARE * max_num_seqs)

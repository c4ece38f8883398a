"""Define the settings of a worker, which extend the queue's. Only the entry point reads them."""

import math
import re
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from gristmill.shared.keys import QUEUE_NAME
from gristmill.shared.operations import Scheduling, SchedulingPolicy
from gristmill.shared.settings import QueueSettings, alias

SPARE = 1.1
"""Requests in flight for each sequence of the engine. The surplus waits in the engine, so a
finished request is replaced in the same step. Without it, an engine runs 7 % fewer requests than it
could (measured on an H200)."""

_SHARE = re.compile(rf"{QUEUE_NAME.pattern}(:[1-9][0-9]{{0,3}})?")


class WorkerSettings(QueueSettings):
    """Settings that say how a worker claims, runs, settles and stops."""

    queue: Annotated[
        str,
        Field(description="name of the queue, or several names with weights: interactive:3,bulk:1"),
    ] = "default"
    vllm_url: Annotated[
        str | None,
        Field(
            validation_alias=alias("VLLM_URL"),
            description="an OpenAI-compatible server, with or without /v1; without it the engine runs in this process",
        ),
    ] = None
    vllm_api_key: Annotated[
        SecretStr | None,
        Field(
            validation_alias=alias("VLLM_API_KEY"),
            description="API key, sent to VLLM_URL as a bearer token",
        ),
    ] = None
    batch_policy: Annotated[
        Literal["continuous", "sequential", "static", "dynamic", "bucketed"],
        Field(
            description="continuous starts each request once the engine has room; the others run whole batches"
        ),
    ] = "continuous"
    batch_size: Annotated[
        int,
        Field(
            ge=1,
            le=4096,
            validation_alias=alias("BATCH_SIZE"),
            description="requests in one batch; with continuous, most requests in one claim",
        ),
    ] = 64
    batch_timeout_ms: Annotated[
        float,
        Field(
            ge=0,
            le=600_000,
            validation_alias=alias("BATCH_TIMEOUT_MS"),
            description="most milliseconds to fill a batch, from its first request; 0 takes what waits now",
        ),
    ] = 0
    max_in_flight: Annotated[
        int | None,
        Field(
            ge=1,
            le=65_536,
            validation_alias=alias("MAX_IN_FLIGHT"),
            description="most requests in the engine; 1.1 times its max_num_seqs unless set",
        ),
    ] = None
    scheduling: Annotated[
        Scheduling | None,
        Field(
            description="order in which all claims from the queue take waiting requests; unset keeps its order, at first fair"
        ),
    ] = None
    ageing_s: Annotated[
        float,
        Field(
            ge=0,
            le=86_400,
            description="seconds without service after which a lane gets a turn; 0 for never; needs GRISTMILL_SCHEDULING",
        ),
    ] = 10.0
    max_claim_tokens: Annotated[
        int, Field(ge=1, description="most estimated tokens in one claim")
    ] = 2**40
    beat_s: Annotated[
        float | None,
        Field(
            gt=0, le=60, description="seconds between heartbeats; a fifth of the lease unless set"
        ),
    ] = None
    drain_timeout_s: Annotated[
        float, Field(ge=0, le=86_400, description="seconds to finish requests after SIGTERM")
    ] = 60.0
    start_timeout_s: Annotated[
        float, Field(gt=0, description="most seconds for a start or a restart of the engine")
    ] = 1800.0
    stall_timeout_s: Annotated[
        float,
        Field(
            ge=1,
            description="most seconds between two turns of the event loop, and between two tokens of an engine with requests",
        ),
    ] = 120.0
    max_request_s: Annotated[
        float,
        Field(gt=0, description="most seconds for one request; then it ends with the text it has"),
    ] = 3600.0
    max_repeated_tokens: Annotated[
        int,
        Field(ge=0, description="output tokens that may repeat one pattern; 0 for any number"),
    ] = 1024
    max_result_bytes: Annotated[
        int,
        Field(
            ge=1024,
            le=256 * 2**20,
            validation_alias=alias("MAX_RESULT_BYTES"),
            description="most bytes of one answer",
        ),
    ] = 32 * 2**20
    backoff_base_s: Annotated[
        float,
        Field(gt=0, description="most seconds before the first retry; doubles with each attempt"),
    ] = 1.0
    backoff_max_s: Annotated[float, Field(gt=0, description="most seconds before any retry")] = 60.0
    health_host: Annotated[str, Field(description="address on which the probes listen")] = "0.0.0.0"  # noqa: S104  # a pod's
    health_port: Annotated[
        int, Field(ge=0, le=65_535, description="port of the probes; 0 picks a free port")
    ] = 8080
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        Field(description="lowest level of the JSON log"),
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

    def in_flight_limit(self, max_num_seqs: int) -> int:
        """Return the most requests that the engine may hold; see `SPARE`."""
        return self.max_in_flight or math.ceil(SPARE * max_num_seqs)

"""The settings of a steward, in addition to those of files and batches.

Only the entry point reads them.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from gristmill.producer.batches.settings import BatchSettings
from gristmill.shared.redis_url import parse
from gristmill.shared.settings import alias


class StewardSettings(BatchSettings):
    """Settings of the steward: RQ's Redis, webhooks and probes."""

    rq_redis_url: Annotated[
        SecretStr | None,
        Field(
            validation_alias=alias("RQ_REDIS_URL"),
            description="URL of the Redis of the steward's RQ jobs, which cannot be a cluster; unset uses REDIS_URL",
        ),
    ] = None
    sweep_interval_s: Annotated[
        int,
        Field(ge=1, le=24 * 3600, description="time between two sweeps that delete expired files"),
    ] = 300
    webhook_timeout_s: Annotated[
        float, Field(gt=0, le=60, description="longest exchange with a webhook")
    ] = 10.0
    webhook_allowed_hosts: Annotated[
        str,
        Field(
            description="hosts, separated by commas, that webhooks may reach although their addresses are private; empty allows none"
        ),
    ] = ""
    health_host: Annotated[
        str, Field(description="address on which the probes listen: `/healthz`, `/readyz`")
    ] = "0.0.0.0"  # noqa: S104  # a pod's
    health_port: Annotated[
        int, Field(ge=0, le=65_535, description="port of the probe; 0 picks a free port")
    ] = 8081
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        Field(description="lowest level of the JSON log on stdout"),
    ] = "INFO"

    @model_validator(mode="after")
    def _check_rq_url(self) -> Self:
        if parse(self.rq_url).kind == "cluster":
            message = (
                "RQ, which runs the steward's jobs, cannot use a cluster; set RQ_REDIS_URL to a single Redis"
                " or to its sentinels (a small one suffices: batches are in REDIS_URL, RQ has only their next step)"
            )
            raise ValueError(message)
        return self

    @property
    def rq_url(self) -> str:
        """URL of RQ's Redis."""
        return (self.rq_redis_url or self.redis_url).get_secret_value()

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """The hosts of `webhook_allowed_hosts`, in lower case."""
        hosts = (host.strip().lower() for host in self.webhook_allowed_hosts.split(","))
        return frozenset(host for host in hosts if host)

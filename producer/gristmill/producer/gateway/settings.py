"""The settings of a gateway, over those of files and batches."""

import ipaddress
from typing import Annotated, Literal

from pydantic import Field

from gristmill.producer.batches.settings import BatchSettings


class GatewaySettings(BatchSettings):
    """Where the gateway listens, whom it lets in, and how it stops."""

    gateway_host: Annotated[str, Field(description="where the gateway listens")] = "127.0.0.1"
    gateway_port: Annotated[
        int, Field(ge=0, le=65_535, description="of the gateway; 0 takes a free one")
    ] = 8000
    gateway_allow_anonymous: Annotated[
        bool,
        Field(
            description="let everybody in while there is no tenant, also where others than this machine can reach it"
        ),
    ] = False
    gateway_max_wait_s: Annotated[
        float, Field(ge=0, le=3600, description="longest wait of one call for a result")
    ] = 60.0
    drain_timeout_s: Annotated[
        float, Field(ge=0, le=86_400, description="time to finish after SIGTERM")
    ] = 60.0
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"], Field(description="of the JSON log")
    ] = "INFO"

    @property
    def is_open(self) -> bool:
        """Whether calls without a key are let in while there is no tenant."""
        return self.gateway_allow_anonymous or _is_loopback(self.gateway_host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

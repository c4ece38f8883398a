"""The settings of a gateway, in addition to those of files and batches."""

import ipaddress
from typing import Annotated, Literal

from pydantic import Field

from gristmill.producer.batches.model_settings import ModelSettings


class GatewaySettings(ModelSettings):
    """Settings of the gateway: its address, calls without a key, waits and the time to stop."""

    gateway_host: Annotated[str, Field(description="address on which the gateway listens")] = (
        "127.0.0.1"
    )
    gateway_port: Annotated[
        int,
        Field(
            ge=0, le=65_535, description="port on which the gateway listens; 0 picks a free port"
        ),
    ] = 8000
    gateway_allow_anonymous: Annotated[
        Literal["false", "true", "loopback"],
        Field(
            description="whether the gateway accepts calls without a key while no tenant exists, although other machines can reach its address. `loopback` accepts those whose `Host` is `localhost` or a loopback address, for a container whose port only its machine can reach. On a loopback address, it always does so"
        ),
    ] = "false"
    gateway_max_wait_s: Annotated[
        float,
        Field(
            ge=0, le=3600, description="longest wait of one call for a result; 0 answers at once"
        ),
    ] = 60.0
    gateway_live_timeout_s: Annotated[
        float,
        Field(
            gt=0,
            le=86_400,
            description="longest wait of a live request for its answer; then a 504 names the request, which goes on. The default is 10 s below the timeout of OpenAI's clients, so that they see the 504",
        ),
    ] = 590.0
    drain_timeout_s: Annotated[
        float,
        Field(
            ge=0,
            le=86_400,
            description="longest time to finish the calls in progress after SIGTERM",
        ),
    ] = 60.0
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        Field(description="lowest level of the JSON log on stdout"),
    ] = "INFO"

    @property
    def is_open(self) -> bool:
        """True if calls need no key while no tenant exists."""
        return self.gateway_allow_anonymous != "false" or is_loopback(self.gateway_host)


def is_loopback(host: str) -> bool:
    """Return True for `localhost` and for addresses of this machine alone: 127.0.0.0/8 and ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

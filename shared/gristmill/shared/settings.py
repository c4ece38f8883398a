"""Define the settings that both sides share. Entry points read them and pass them down.

Every setting is an environment variable with the prefix `GRISTMILL_`. The names that people already
use (`REDIS_URL`) also work without the prefix. `docs/settings.md` lists them all.
"""

import os
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gristmill.shared.errors import SettingsError
from gristmill.shared.operations import Limits
from gristmill.shared.redis_url import parse
from gristmill.shared.setting_names import warn_of_misspelt

S = TypeVar("S", bound="QueueSettings")


def alias(name: str) -> AliasChoices:
    """Return the two environment variables of a setting: with the prefix, and without it."""
    return AliasChoices(f"GRISTMILL_{name}", name)


def _domains(value: Any) -> Any:
    """Read `cdn.example.com, images.example.com`; hosts are compared in lower case."""
    if not isinstance(value, str):
        return value
    return {host.strip().lower() for host in value.split(",") if host.strip()}


class QueueSettings(BaseSettings):
    """Settings that name the Redis and the queue, and set the queue's limits."""

    model_config = SettingsConfigDict(env_prefix="GRISTMILL_", frozen=True, populate_by_name=True)

    redis_url: Annotated[
        SecretStr,
        Field(
            validation_alias=alias("REDIS_URL"),
            description="URL of one Redis 7.0 or newer or Valkey, of its sentinels, or of a cluster",
        ),
    ] = SecretStr("redis://localhost:6379/0")
    queue: Annotated[str, Field(description="name of the queue")] = "default"
    socket_timeout_s: Annotated[
        float,
        Field(
            gt=0,
            le=600,
            description="longest wait for an answer of Redis; must be above the poll interval",
        ),
    ] = 30.0
    poll_interval_s: Annotated[
        float,
        Field(
            gt=0,
            le=60,
            description="longest time between two looks at an idle queue. A new request rings the doorbell, which ends the wait",
        ),
    ] = 1.0
    max_depth: Annotated[
        int, Field(ge=1, description="most requests in the queue, waiting and in flight together")
    ] = 1_000_000
    max_bytes: Annotated[
        int, Field(ge=1024, description="most bytes of the records of these requests")
    ] = 8 * 2**30
    max_request_bytes: Annotated[
        int,
        Field(
            ge=1024,
            le=256 * 2**20,
            description="largest body of one request; a larger one is refused",
        ),
    ] = 32 * 2**20
    result_ttl_s: Annotated[
        int, Field(ge=1, le=30 * 24 * 3600, description="time for which Redis keeps a result")
    ] = 24 * 3600
    dead_letter_ttl_s: Annotated[
        int, Field(ge=1, le=90 * 24 * 3600, description="time for which Redis keeps a dead letter")
    ] = 7 * 24 * 3600
    lease_s: Annotated[
        float,
        Field(
            ge=0.1,
            le=600,
            description="time without a heartbeat after which a worker counts as dead and others may get its requests",
        ),
    ] = 15.0

    min_replicas: Annotated[
        int,
        Field(
            ge=0,
            le=16,
            description="replicas that must have a request before its submit returns; 0 waits for none. A cluster allows only 0",
        ),
    ] = 0

    check_models: Annotated[
        bool,
        Field(
            description="whether producers refuse a request for a model or endpoint that no live worker of the queue serves. A queue without workers takes every request"
        ),
    ] = True

    device_hour_price: Annotated[
        float,
        Field(
            ge=0,
            le=1e9,
            description="price of one hour of one device, in any currency; 0 shows no costs. `gristmill usage`, `gristmill batch show` and `GET /v1/usage` show them",
        ),
    ] = 0.0

    allowed_media_domains: Annotated[
        frozenset[str],
        NoDecode,
        BeforeValidator(_domains),
        Field(
            description="hosts, separated by commas, from which workers may fetch the images, sounds and videos of a request; empty allows none"
        ),
    ] = frozenset()

    if not TYPE_CHECKING:  # type checkers know the names of the settings from the fields

        def __init__(self, **values: Any) -> None:
            """Read the settings; a ValidationError becomes a SettingsError in our words."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                words = (_words(each, type(self)) for each in error.errors())
                raise SettingsError("; ".join(words)) from None

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        if parse(self.redis_url.get_secret_value()).kind == "cluster" and self.min_replicas:
            message = (
                "min_replicas needs one primary, and REDIS_URL names a cluster; set GRISTMILL_MIN_REPLICAS=0 and"
                " min-replicas-to-write on the nodes of the cluster"
            )
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _check_blocking_time(self) -> Self:
        if self.poll_interval_s >= self.socket_timeout_s:
            message = (
                f"poll_interval_s ({self.poll_interval_s:g}) must be below socket_timeout_s "
                f"({self.socket_timeout_s:g}), or every idle wait ends as a timeout; lower GRISTMILL_POLL_INTERVAL_S"
            )
            raise ValueError(message)
        return self

    @property
    def limits(self) -> Limits:
        """Limits of the queue, in the units of its operations."""
        return Limits(
            max_depth=self.max_depth,
            max_bytes=self.max_bytes,
            max_request_bytes=self.max_request_bytes,
            result_ttl_ms=self.result_ttl_s * 1000,
            dead_letter_ttl_ms=self.dead_letter_ttl_s * 1000,
            lease_ms=int(self.lease_s * 1000),
            min_replicas=self.min_replicas,
        )


def read_settings(cls: type[S], **overrides: Any) -> S:
    """Read settings from the environment; ignore each override whose value is None.

    Warn once of each variable that looks like a misspelt setting.

    Raises:
        SettingsError: Names each setting that is wrong, its value and its bounds.
    """
    given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    warn_of_misspelt(os.environ)
    return cls(**given)


def _words(error: ErrorDetails, model: type[BaseSettings]) -> str:
    """Return the variable's name and the error; a rule over several settings names them."""
    message = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return message
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        known = tuple(model.model_fields)
        nearest = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"use {', '.join(known)}"
        return f"{name!r} is no setting of {model.__name__}; {hint}"
    return f"{name if name.isupper() else f'GRISTMILL_{name.upper()}'}: {message}"

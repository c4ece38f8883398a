"""Start and stop the recording of traces in a process; entry points call it. Off, it imports nothing and costs nothing.

The standard variables of OpenTelemetry decide, and there are no settings of our own
(https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/). Spans wait in the bounded queue
of OpenTelemetry's `BatchSpanProcessor`, whose thread sends them. So a dead endpoint loses spans and delays nothing.
"""

import os
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

import structlog

from gristmill.shared.errors import SettingsError
from gristmill.shared.install import install_hint

log = structlog.get_logger()

ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PROTOCOL, TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"

HTTP, GRPC = "http/protobuf", "grpc"
_DEFAULT = {HTTP: "http://localhost:4318", GRPC: "http://localhost:4317"}


class Tracing(Protocol):
    """The recording of traces in this process."""

    def stop(self) -> None:
        """Send the last spans, for 3 s at most; call it at the end of the process."""


def is_on(environ: Mapping[str, str]) -> bool:
    """Return whether the variables of OpenTelemetry ask for traces: an endpoint, or the exporter `otlp`.

    Raises:
        SettingsError: `OTEL_TRACES_EXPORTER` names another exporter.
    """
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return False
    if exporter not in ("", "otlp"):
        raise SettingsError(f"OTEL_TRACES_EXPORTER is {exporter[:40]!r}; use otlp or none")
    return bool(exporter or environ.get(ENDPOINT) or environ.get(TRACES_ENDPOINT))


def otlp_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return endpoint and protocol of the traces, as the variables for traces alone.

    OpenTelemetry's exporters and vLLM have different defaults; with these two they agree. An `OTEL_EXPORTER_OTLP_ENDPOINT`
    is a base URL, to which HTTP adds `/v1/traces`.

    Raises:
        SettingsError: The protocol is not known.
    """
    protocol = (environ.get(TRACES_PROTOCOL) or environ.get(PROTOCOL) or HTTP).strip()
    if protocol not in _DEFAULT:
        name = TRACES_PROTOCOL if environ.get(TRACES_PROTOCOL) else PROTOCOL
        raise SettingsError(f"{name} is {protocol[:40]!r}; use {HTTP} or {GRPC}")
    endpoint = environ.get(TRACES_ENDPOINT)
    if not endpoint:
        endpoint = environ.get(ENDPOINT) or _DEFAULT[protocol]
        endpoint = endpoint.rstrip("/") + "/v1/traces" if protocol == HTTP else endpoint
    return {TRACES_ENDPOINT: endpoint, TRACES_PROTOCOL: protocol}


def traces_endpoint(environ: Mapping[str, str]) -> str | None:
    """Return where the traces go; None if tracing is off."""
    return otlp_variables(environ)[TRACES_ENDPOINT] if is_on(environ) else None


def start_tracing(
    service: str, count_lost: Callable[[int], object] = lambda _: None
) -> "Tracing | None":
    """Record the traces of this process from now on, if the environment asks for it.

    Args:
        service: Name of the service, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` has one.
        count_lost: Called with the number of spans that no endpoint will get.

    Returns:
        The recording, to stop it at the end; None if tracing is off.

    Raises:
        SettingsError: A variable is wrong, or the extra `traces` is not installed.
    """
    if not is_on(os.environ):
        return None
    variables = otlp_variables(os.environ)
    os.environ.update(variables)
    try:
        from gristmill.shared.span_export import Recording, otlp_exporter
    except ModuleNotFoundError as error:
        message = f"traces need the package {error.name}; {install_hint('traces')}"
        raise SettingsError(message) from None
    protocol = variables[TRACES_PROTOCOL]
    public = _public(variables[TRACES_ENDPOINT])
    recording = Recording(service, otlp_exporter(protocol), public, count_lost)
    log.info("traces.started", endpoint=public, protocol=protocol)
    return recording


def _public(endpoint: str) -> str:
    """Return an endpoint without user, password and query, for the log."""
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))

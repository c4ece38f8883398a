"""Templates of the page. Jinja2 escapes every value; no template marks one as safe."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

PACKAGE = "gristmill.producer.gateway.ui"

MAX_EVIDENCE = 8 * 1024
"""Most characters of evidence that a page shows."""

STATIC: Mapping[str, str] = {
    "ui.css": "text/css; charset=utf-8",
    "ui.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""The static files, all that there are -> their type."""


@cache
def static_file(name: str) -> bytes:
    """Return a static file; `name` is one of `STATIC`."""
    return files(PACKAGE).joinpath("static", name).read_bytes()


def render(template: str, **values: Any) -> Markup:
    """Return a page or a fragment of one; another template may embed it as it is."""
    return Markup(_environment().get_template(template).render(values))  # noqa: S704  # Jinja2 has escaped the values


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(PACKAGE), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "count": count, "duration": duration, "evidence": evidence, "moment": moment, "path": path, "size": size,
        "percent": percent,
    }  # fmt: skip
    return environment


def count(number: float | None, digits: int = 0) -> str:
    """Return a number with thousands separated; a dash for None."""
    return "–" if number is None else f"{number:,.{digits}f}"  # noqa: RUF001


def percent(share: float | None) -> str:
    """Return a share as percent; a dash for None."""
    return "–" if share is None else f"{share:.0%}"  # noqa: RUF001


def duration(seconds: float | None) -> str:
    """Return a duration in at most two units, such as `2 h 5 min`; a dash for None."""
    if seconds is None:
        return "–"  # noqa: RUF001
    if abs(seconds) < 10:
        return f"{seconds:.1f} s"
    if abs(seconds) < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if abs(minutes) < 120:
        return f"{minutes} min"
    if abs(minutes) < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // (24 * 60)} d {minutes // 60 % 24} h"


def moment(at_ms: float | None) -> str:
    """Return a moment in UTC; a dash for None and 0, and for what is no moment."""
    if not at_ms:
        return "–"  # noqa: RUF001
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    except OverflowError:
        return "–"  # noqa: RUF001
    return at.strftime("%Y-%m-%d %H:%M:%S")


def size(num_bytes: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} GiB"


def path(name: str) -> str:
    """Return a name as one segment or the value of a URL."""
    return quote(name, safe="")


def evidence(value: Any) -> str:
    """Return evidence as indented JSON, cut at `MAX_EVIDENCE`."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_EVIDENCE else f"{text[:MAX_EVIDENCE]} …"

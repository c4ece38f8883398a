"""Templates of the page. Jinja2 escapes every value; no template marks one as safe."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gristmill.producer.overview import figures
from gristmill.shared.redis_full import in_words

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
        "count": figures.count, "duration": figures.duration, "evidence": evidence, "memory": figures.memory,
        "moment": figures.moment, "path": path, "percent": figures.percent, "size": in_words,
    }  # fmt: skip
    return environment


def path(name: str) -> str:
    """Return a name as one segment or the value of a URL."""
    return quote(name, safe="")


def evidence(value: Any) -> str:
    """Return evidence as indented JSON, cut at `MAX_EVIDENCE`."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_EVIDENCE else f"{text[:MAX_EVIDENCE]} …"

"""Write docs/settings.md from the settings models; `make docs` runs this, and `make check` runs it with --check."""

import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from gristmill.producer.batches.settings import BatchSettings
from gristmill.producer.gateway.settings import GatewaySettings
from gristmill.producer.steward.settings import StewardSettings
from gristmill.shared.redis_full import in_words
from gristmill.shared.settings import QueueSettings
from gristmill.worker.settings import WorkerSettings

PAGE = Path(__file__).with_name("settings.md")
WIDTH = 116

PREFACE = """\
# Settings

<!-- Written by docs/make_settings.py from the settings models: edit their descriptions and run `make docs`. -->

Settings are environment variables. A variable of the wrong type or out of its bounds is an error that names it.
If both names of a setting are set, the one with the prefix `GRISTMILL_` counts. Commands have options for some of
them, such as `--redis-url` and `--queue`; an option wins over its variable. A Python program can set those of the
first section in code: `QueueSettings(queue="bulk")`, see [python.md](python.md#open-a-client).

| process | its sections |
| --- | --- |
| client, commands | [Queue](#queue) |
| worker, `gristmill bench` | [Queue](#queue), [Worker](#worker) |
| `gristmill batch` | [Queue](#queue), [Files and batches](#files-and-batches), two of [Gateway](#gateway) |
| gateway | [Queue](#queue), [Files and batches](#files-and-batches), [Gateway](#gateway) |
| steward | [Queue](#queue), [Files and batches](#files-and-batches), [Steward](#steward) |

All processes of a queue need the same `REDIS_URL` and `GRISTMILL_QUEUE`, and should have the same limits.
"""

SECTIONS: tuple[tuple[str, str, type[QueueSettings], type[QueueSettings] | None], ...] = (
    ("Queue", "Every process reads these.", QueueSettings, None),
    ("Worker", "vLLM's own options are arguments of the worker: [tuning.md](tuning.md#vllms-own-options).",
     WorkerSettings, QueueSettings),
    ("Files and batches", "The gateway, the steward and `gristmill batch` need the same values.",
     BatchSettings, QueueSettings),
    ("Gateway", "See [gateway.md](gateway.md).", GatewaySettings, BatchSettings),
    ("Steward", "See [steward.md](steward.md).", StewardSettings, BatchSettings),
)  # fmt: skip
"""Heading, sentence below it, the model, and the model whose settings an earlier section has."""

SEE = {
    "redis_url": "[the forms of the URL](operations.md#redis)",
    "min_replicas": "[what a failover loses](operations.md#what-a-failover-loses)",
    "check_bodies": "[the check of bodies](batches.md#the-check-of-bodies)",
    "check_models": "[several models](tuning.md#several-models)",
    "allowed_media_domains": "[media](gateway.md#media)",
    "queue": "[several queues](tuning.md#several-queues)",
    "vllm_url": "[servers](operations.md#a-server-behind-vllm_url)",
    "engines": "[several engines on one card](tuning.md#several-engines-on-one-card)",
    "devices": "[all devices of a machine](tuning.md#all-devices-of-a-machine)",
    "max_in_flight": "[how much a worker claims](tuning.md#how-much-a-worker-claims)",
    "until_empty": "[until the queue is empty](operations.md#until-the-queue-is-empty)",
    "batch_policy": "[policies](tuning.md#policies)",
    "scheduling": "[scheduling](tuning.md#scheduling)",
    "storage_url": "[the storage](batches.md#the-storage)",
    "batch_window_requests": "[the window](batches.md#the-window)",
    "rq_redis_url": "[the steward's Redis](steward.md#redis)",
    "webhook_allowed_hosts": "[webhooks](steward.md#webhooks)",
    "gateway_allow_anonymous": "[tenants and keys](gateway.md#tenants-and-keys)",
    "gateway_queues": "[several queues](gateway.md#several-queues)",
    "gateway_models": "[several queues](gateway.md#several-queues)",
}
"""Setting -> where to read more."""

_DAY_S = 24 * 3600


def page() -> str:
    """Return the whole page."""
    parts = [PREFACE]
    for heading, sentence, model, base in SECTIONS:
        items = "\n".join(_item(name, field) for name, field in _fields(model, base))
        parts.append(f"## {heading}\n\n{sentence}\n\n{items}\n")
    return "\n".join(parts)


def _fields(
    model: type[QueueSettings], base: type[QueueSettings] | None
) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the settings of a model that its base lacks or describes otherwise."""
    known = base.model_fields if base else {}
    for name, field in model.model_fields.items():
        if name not in known or known[name].description != field.description:
            yield name, field


def _item(name: str, field: FieldInfo) -> str:
    facts = [f"default {_default(name, field)}", *_bounds(name, field)]
    see = f" See {SEE[name]}." if name in SEE else ""
    text = f"{_variables(name, field)} ({'; '.join(facts)}): {field.description}.{see}"
    return textwrap.fill(
        text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )  # fmt: skip


def _variables(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    names = alias.choices if isinstance(alias, AliasChoices) else [f"GRISTMILL_{name.upper()}"]
    return " or ".join(f"**`{each}`**" for each in reversed(names))


def _default(name: str, field: FieldInfo) -> str:
    value = field.default
    if value is None:
        return "unset"
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str | frozenset | tuple | dict):
        return f"`{_without_home(str(value))}`" if value else "empty"
    return _amount(name, value)


def _without_home(text: str) -> str:
    """Return a default that is the same on every machine."""
    home = str(Path.home())
    return f"~{text.removeprefix(home)}" if text.startswith(f"{home}/.") else text


def _bounds(name: str, field: FieldInfo) -> Iterable[str]:
    """Return which values are allowed, in words."""
    if choices := list(_choices(field.annotation)):
        begin = "a number or" if _takes_numbers(field.annotation) else "one of"
        return [f"{begin} {', '.join(f'`{choice}`' for choice in choices)}"]
    if field.annotation is bool:
        return ["`true` or `false`"]
    bounds = {
        key: getattr(item, key)
        for item in field.metadata
        for key in ("ge", "gt", "le")
        if hasattr(item, key)
    }
    low, above, high = (bounds.get(key) for key in ("ge", "gt", "le"))
    words = [] if low is None else [f"at least {_amount(name, low)}"]
    words += [] if above is None else [f"more than {_amount(name, above)}"]
    words += [] if high is None else [f"at most {_amount(name, high)}"]
    return [", ".join(words)] if words else []


def _takes_numbers(annotation: Any) -> bool:
    """Return whether a union takes numbers beside its choices."""
    return annotation is int or any(map(_takes_numbers, get_args(annotation)))


def _choices(annotation: Any) -> Iterator[str]:
    """Yield the values of a Literal, also within a union."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from _choices(part)


def _amount(name: str, value: float) -> str:
    """Return a number with the unit that the name of its setting ends with."""
    if name.endswith("_bytes"):
        return in_words(int(value))
    if name.endswith("_tokens") and value == 2**40:
        return "2^40"
    number = f"{value:,.10g}"
    if name.endswith("_ms"):
        return f"{number} ms"
    if not name.endswith("_s"):
        return number.replace(",", "") if name.endswith("_port") else number
    days = (
        f" ({value / _DAY_S:g} day{'s' if value > _DAY_S else ''})"
        if value and value % _DAY_S == 0
        else ""
    )
    return f"{number} s{days}"


def main() -> None:
    """Write the page, or compare it with --check."""
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif not PAGE.is_file() or PAGE.read_text() != page():
        sys.exit(
            f"docs/{PAGE.name} is stale: a settings model has changed; run `make docs` and commit the page"
        )


if __name__ == "__main__":
    main()

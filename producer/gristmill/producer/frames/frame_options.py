"""Read the keywords of `map_table`: what to ask, the fields of its requests, and how to run them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson
from pydantic import BaseModel

from gristmill.producer.arguments import check_window, kind_of, settings_of
from gristmill.producer.commands.run_workers import WatchWorkers
from gristmill.producer.tables.answer_schema import AnswerSchema
from gristmill.producer.tables.spec import TableSpec, read_template
from gristmill.producer.window_size import WINDOW
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import CHAT, Request, check_names
from gristmill.shared.settings import QueueSettings

_KINDS: Mapping[str, tuple[Any, str]] = {
    "prompt": (str, "a text such as 'Classify: {text}'; a function goes to request="),
    "system": (str, "a text"),
    "template": (str | Path, "the text of a Jinja template, or the Path of its file"),
    "request": (Callable, "a function that takes a row as a dict and returns a body or a Request"),
    "image": (str, "the name of a column"),
    "params": (Mapping, "a dict such as {'max_tokens': 64}"),
    "model": (str, "the name of a model"),
    "endpoint": (str, "a path such as '/v1/completions'"),
    "schema": (Mapping | type, "a JSON Schema as a dict, or a Pydantic model"),
    "parse": (str, "'json'"),
    "skip_null": (bool, "True or False"),
    "dedupe": (bool, "True, False, or None to do so at temperature 0"),
    "rename": (Mapping, "a dict such as {'answer': 'label'}"),
}
"""Keyword of the table -> what it may be, for Python and for people. None stands for the default."""

_FIELDS = ("priority", "tenant", "deadline_s", "max_attempts", "batch")
"""Keywords that are fields of each request."""

_OF_PROMPTS = ("system", "image", "endpoint", "skip_null")
"""Keywords that a function makes useless: it says the same by what it returns."""

KEYWORDS = (*_KINDS, *_FIELDS, "settings", "engine", "window", "progress")
"""All keywords."""


class Engine(Protocol):
    """An engine of the caller, such as `own_engine` of `gristmill.local` yields.

    Attributes:
        settings: Its Redis and queue.
        window: Most unfinished requests at a time, unless the call says otherwise.
        lost: Makes a coroutine that raises a GristmillError once the engine has ended.
    """

    @property
    def settings(self) -> QueueSettings: ...  # noqa: D102

    @property
    def window(self) -> int: ...  # noqa: D102

    @property
    def lost(self) -> WatchWorkers: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameOptions:
    """The keywords of one call, checked.

    Attributes:
        spec: The question to each row.
        fields: Fields of each request that its row does not set.
        settings: Redis, queue and limits.
        window: Most unfinished requests at a time.
        has_progress: True to show the progress on stderr.
        lost: See `Engine`; None if the workers are not the caller's.
    """

    spec: TableSpec
    fields: Mapping[str, Any]
    settings: QueueSettings
    window: int
    has_progress: bool
    lost: WatchWorkers | None

    @classmethod
    def read(cls, keywords: Mapping[str, Any]) -> "FrameOptions":
        """Check keywords.

        Raises:
            InvalidRequest: One is unknown, of a wrong kind, or does not go with another one.
            SettingsError: A setting of the environment is wrong.
        """
        check_names(keywords, KEYWORDS)
        engine = _engine(keywords)
        window = keywords.get("window")
        if window is None:
            window = engine.window if engine else WINDOW
        check_window(window)
        fields = {name: keywords[name] for name in _FIELDS if keywords.get(name) is not None}
        spec = _spec({name: keywords[name] for name in _KINDS if keywords.get(name) is not None})
        options = cls(
            spec=spec,
            fields=fields,
            settings=engine.settings if engine else settings_of(keywords.get("settings"), None),
            window=window,
            has_progress=bool(keywords.get("progress")),
            lost=engine.lost if engine else None,
        )
        options.sample()  # so that a wrong field is one error, and not one for each row
        return options

    def sample(self) -> Request:
        """Return a request without a prompt, to check what all requests have in common.

        Raises:
            InvalidRequest: A field of each request breaks a rule.
        """
        model = self.spec.model or self.spec.params.get("model") or ""
        return Request(body=b"{}", endpoint=self.spec.endpoint, model=model, **self.fields)


def _engine(keywords: Mapping[str, Any]) -> Engine | None:
    engine: Engine | None = keywords.get("engine")
    if engine is None:
        return None
    if not hasattr(engine, "lost"):
        raise InvalidRequest(
            f"engine is a {kind_of(engine)}; start one: with own_engine('MODEL') as engine, from"
            " gristmill.local.own_engine"
        )
    if keywords.get("settings") is not None:
        raise InvalidRequest("engine has a queue of its own; leave settings out, or engine")
    return engine


def _spec(given: dict[str, Any]) -> TableSpec:
    for name, value in given.items():
        kind, words = _KINDS[name]
        if not isinstance(value, kind):
            raise InvalidRequest(f"{name} is a {kind_of(value)}; it is {words}")
    if sum(name in given for name in ("prompt", "template", "request")) != 1:
        raise InvalidRequest(
            "say what to ask for each row, in one way: prompt='Classify: {text}', template=..., or request=FUNCTION"
        )
    found = [name for name in _OF_PROMPTS if given.get(name)] if "request" in given else []
    if found:
        raise InvalidRequest(
            f"{found[0]} goes with prompt or template, and request makes the whole body; say it there"
        )
    _check_json(given.get("params", {}))
    if isinstance(template := given.get("template"), Path):
        given["template"] = read_template(template)
    if "schema" in given:
        given["schema"] = _schema(given["schema"])
    return TableSpec(**{"endpoint": CHAT} | given)


def _check_json(params: Mapping[str, Any]) -> None:
    try:
        orjson.dumps(dict(params))
    except TypeError as error:
        raise InvalidRequest(
            f"params has a value that has no JSON: {error}; use texts, numbers, lists and dicts"
        ) from None


def _schema(given: Any) -> AnswerSchema:
    if isinstance(given, Mapping):
        return AnswerSchema(given)
    if issubclass(given, BaseModel):
        return AnswerSchema.of_model(given)
    raise InvalidRequest(f"schema is the class {given.__name__}; give a subclass of BaseModel")

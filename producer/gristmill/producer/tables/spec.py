"""What to ask for each row of a table: the options of a command, or the arguments of a call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from gristmill.producer.tables.answer_schema import AnswerSchema
from gristmill.producer.tables.row_chunks import Row
from gristmill.shared.disk_errors import disk_errors
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import shown
from gristmill.shared.request import CHAT, COMPLETIONS

ENDPOINTS = (CHAT, COMPLETIONS)
"""Endpoints that answer a prompt with a text."""

CONSTRAINTS = ("response_format", "structured_outputs")
"""Fields of a body that constrain its answer, so `--params` must not have them if there is a schema."""

PROMPT_FIELDS = ("messages", "prompt", "input")
"""Fields of a body that come from the columns, so `--params` must not have them."""

LIMITS = ("max_completion_tokens", "max_tokens")
"""Fields of a body that limit its answer. The first one counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """What each row of a table asks, and what its answer becomes.

    Attributes:
        prompt: Text of the user's message, with `{column}` for the value of a column; None for none.
        system: Text of the system message, as it is; None for none.
        template: Text of a Jinja template that renders the messages; None for none.
        request: Function that returns the request of a row, for calls from Python; None for none.
        image: Column of images; None for none.
        params: Other fields of each body.
        max_tokens: Most tokens of each answer; None leaves it to `params`.
        model: Model of each body; None leaves it out.
        endpoint: Endpoint of each request.
        skip_null: True leaves a row unanswered that has a null in a used column; False gives it an error.
        dedupe: True runs identical requests once, False runs each; None does so at temperature 0.
        rename: Added column -> the name that it gets.
        schema: The form that each answer must have; its properties become columns. None for any text.
        parse: json checks the answers and does not constrain the engine; None constrains it to the schema.

    Raises:
        InvalidRequest: The parts do not fit together.
    """

    prompt: str | None = None
    system: str | None = None
    template: str | None = None
    request: Callable[[Row], object] | None = None
    image: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    model: str | None = None
    endpoint: str = CHAT
    skip_null: bool = False
    dedupe: bool | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    schema: AnswerSchema | None = None
    parse: str | None = None

    def __post_init__(self) -> None:
        if [self.prompt, self.template, self.request].count(None) != 2:
            raise InvalidRequest(
                "a table needs a prompt: give --prompt 'Classify: {text}', or --template FILE, not both"
            )
        if self.endpoint not in ENDPOINTS:
            raise InvalidRequest(
                f"the columns of a table cannot ask {shown(self.endpoint)}; use {' or '.join(ENDPOINTS)}"
            )
        if self.endpoint == COMPLETIONS and (self.system is not None or self.image):
            raise InvalidRequest(
                f"{COMPLETIONS} takes one text; leave out --system and --image, or use {CHAT}"
            )
        self._check_params()
        self._check_schema()

    def _check_params(self) -> None:
        if found := [name for name in PROMPT_FIELDS if name in self.params]:
            raise InvalidRequest(
                f"--params has {found[0]!r}, which --prompt makes; remove it there"
            )
        limits = [name for name in LIMITS if name in self.params]
        if self.max_tokens is not None and limits:
            raise InvalidRequest(f"--params has {limits[0]!r}, too; leave it or --max-tokens out")
        of_params = self.params.get("model", self.model)
        if self.model is not None and of_params != self.model:
            raise InvalidRequest(
                f"--model is {shown(self.model)} and the model in --params {shown(of_params)}; leave one out"
            )

    def _check_schema(self) -> None:
        if self.parse not in (None, "json"):
            raise InvalidRequest(f"--parse is {shown(self.parse)}; use json, or leave it out")
        if self.schema is None:
            if self.parse is not None:
                raise InvalidRequest("--parse json needs --schema, whose properties become columns")
            return
        if found := [name for name in CONSTRAINTS if name in self.params]:
            raise InvalidRequest(
                f"--params has {found[0]!r}, which --schema makes; remove it there"
            )
        if self.parse is None:
            self.schema.check_limits()

    @property
    def shared_fields(self) -> dict[str, Any]:
        """Fields that all bodies share: those of `params`, and `max_tokens`."""
        limit = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        return dict(self.params) | limit

    @property
    def limit(self) -> tuple[str, int] | None:
        """The field that limits the answers and its tokens; None if the model's own limit holds."""
        fields = self.shared_fields
        given = next(((name, fields[name]) for name in LIMITS if fields.get(name)), None)
        return given if given and type(given[1]) is int else None

    @property
    def constraint(self) -> dict[str, Any]:
        """Fields of each body that constrain its answer."""
        if self.schema is None or self.parse is not None:
            return {}
        return {"response_format": self.schema.response_format}

    @property
    def is_deduping(self) -> bool:
        """True if identical requests run once."""
        return is_greedy(self.params) if self.dedupe is None else self.dedupe

    def facts(self) -> dict[str, Any]:
        """Return the values that a resume must have again, by the name of their option."""
        facts = {
            "prompt": self.prompt,
            "system": self.system,
            "template": self.template,
            "image": self.image,
            "params": dict(self.params) or None,
            "max_tokens": self.max_tokens,
            "model": self.model,
            "skip_null": self.skip_null or None,
            "dedupe": self.is_deduping,
            "rename": dict(self.rename) or None,
            "schema": None if self.schema is None else dict(self.schema.document),
            "parse": self.parse,
        }
        return {name: value for name, value in facts.items() if value is not None}


def is_greedy(fields: Mapping[str, Any]) -> bool:
    """Return whether a request with these fields has temperature 0, so that a copy needs no answer of its own."""
    temperature = fields.get("temperature")
    return type(temperature) in (int, float) and temperature == 0


def read_params(path: Path) -> dict[str, Any]:
    """Return the fields of a params file.

    Raises:
        InvalidRequest: The file cannot be read, or has no JSON object.
    """
    with disk_errors(path, "name a JSON file with --params"):
        raw = path.read_bytes()
    try:
        params = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"--params {path} is no JSON: {error.msg} in line {error.lineno}, column {error.colno}; correct it"
        ) from None
    if not isinstance(params, dict):
        raise InvalidRequest(
            f'--params {path} is no object; write {{"max_tokens": 64}} for example'
        )
    return params


def read_template(path: Path) -> str:
    """Return the text of a template file.

    Raises:
        InvalidRequest: The file cannot be read, or is not UTF-8.
    """
    with disk_errors(path, "name a Jinja file with --template"):
        raw = path.read_bytes()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"--template {path} is not UTF-8; save it as UTF-8") from None

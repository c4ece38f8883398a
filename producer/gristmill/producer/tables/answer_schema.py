"""`--schema`: the JSON Schema of the answers, from a file or from a Pydantic model."""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

from gristmill.producer.tables.schema_types import properties_of
from gristmill.shared.constraint_limits import constraint_excess
from gristmill.shared.disk_errors import disk_errors
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import one_line

EXAMPLE = '{"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}'
"""Example of a schema, for error messages."""

_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class AnswerSchema:
    """The form that each answer must have.

    Attributes:
        document: The JSON Schema. It describes an object with properties.
        model: Pydantic model whose own validators check an answer, too; None for none.

    Raises:
        InvalidRequest: The document is no JSON Schema, refers to another document, or describes no object
            with properties.
    """

    document: Mapping[str, Any]
    model: type[BaseModel] | None = None

    def __post_init__(self) -> None:
        try:
            self.validator()
        except ValueError as error:
            line = one_line(str(error).partition("\n\nFailed validating")[0], 300)
            raise InvalidRequest(f"--schema is no JSON Schema: {line}; correct it") from None
        if not properties_of(self.document):
            raise InvalidRequest(
                f"--schema describes no object with properties, which become columns; write {EXAMPLE} for example"
            )

    @classmethod
    def of_model(cls, model: type[BaseModel]) -> "AnswerSchema":
        """Return the schema of a Pydantic model.

        Raises:
            InvalidRequest: JSON Schema cannot describe the model.
        """
        try:
            return cls(model.model_json_schema(), model)
        except (PydanticUserError, PydanticUndefinedAnnotation) as error:
            raise InvalidRequest(
                f"--schema: {model.__name__} has no JSON Schema: {error.message}; give its fields types of JSON"
            ) from None

    def validator(self) -> Any:
        """Return a validator of `jsonschema_rs` for the document, by the draft that it names.

        Raises:
            ValueError: The document is no JSON Schema.
        """
        return jsonschema_rs.validator_for(dict(self.document), retriever=_no_retrieval)

    def problem(self, answer: Mapping[str, Any]) -> str | None:
        """Return why the model's own validators refuse an answer; None if they do not."""
        if self.model is None:
            return None
        try:
            self.model.model_validate_json(orjson.dumps(answer))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            return f"{'.'.join(map(str, first['loc'])) or 'the answer'}: {first['msg']}"
        except Exception as error:  # noqa: BLE001  # a validator of the user may raise anything
            return f"{type(error).__name__}: {error}"
        return None

    @property
    def response_format(self) -> dict[str, Any]:
        """The field of a body that constrains the engine to the schema."""
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": self.document}}

    def check_limits(self) -> None:
        """Refuse a schema that every worker refuses to compile.

        Raises:
            InvalidRequest: The schema is above a limit.
        """
        if excess := constraint_excess({"response_format": self.response_format}):
            raise InvalidRequest(
                f"--schema: {excess[1]}, or check the answers without the constraint: --parse json"
            )


def read_schema(source: str) -> AnswerSchema:
    """Return the schema that `--schema` names.

    Args:
        source: Path of a JSON file, or `MODULE:CLASS` of a Pydantic model. The module is imported here; the
            current directory is searched, too.

    Raises:
        InvalidRequest: The file or the class cannot be read, or is no schema.
    """
    if _CLASS.fullmatch(source) and not Path(source).exists():
        return AnswerSchema.of_model(_imported(source))
    with disk_errors(Path(source), "name a JSON Schema with --schema, or MODULE:CLASS"):
        raw = Path(source).read_bytes()
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"--schema {source} is no JSON: {error.msg} in line {error.lineno}, column {error.colno}; correct it"
        ) from None
    if not isinstance(document, dict):
        raise InvalidRequest(f"--schema {source} is no object; write {EXAMPLE} for example")
    return AnswerSchema(document)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let modules of a folder be imported. Afterwards, its `queue.py` hides no module of the command."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)


def _imported(source: str) -> type[BaseModel]:
    module, _, name = source.partition(":")
    try:
        with _importable(Path.cwd()):
            found = attrgetter(name)(import_module(module))
    except Exception as error:  # a module of the user may raise anything
        raise InvalidRequest(
            f"--schema {source} cannot be imported: {type(error).__name__}: {one_line(str(error), 300)}; name"
            " MODULE:CLASS, where the module lies in this folder or is installed"
        ) from error
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        raise InvalidRequest(
            f"--schema {source} is no Pydantic model; name a subclass of BaseModel"
        )
    return found


def _no_retrieval(uri: str) -> Any:
    raise ValueError(f"the schema refers to {uri}, which is not a part of it")

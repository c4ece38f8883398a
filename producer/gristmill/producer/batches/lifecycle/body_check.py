"""Check bodies against the JSON Schemas that workers publish.

The engines read bodies with pydantic, which takes "5" or true for a number. A schema does not say so, so that
`relaxed` adds what pydantic takes (https://docs.pydantic.dev/latest/concepts/conversion_table/). What a validator of
the engine finds beyond the schema, the engine itself refuses.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import orjson
import structlog
from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError

from gristmill.shared.one_line import one_line
from gristmill.shared.request import Request

log = structlog.get_logger()

MAX_DESCRIBED_BYTES = 8 * 2**10
"""Largest body whose error is looked up; the error of 26 KB may need 67 MB of memory."""

MAX_SHOWN = 60
"""Most characters of a wrong value in an error."""

MAX_PATTERN_BYTES = 2**20
"""Most memory of one compiled pattern. The patterns are matched in linear time."""

_LAX = {"$comment": "what pydantic takes for it"}
_TEXTS: Mapping[str, list[dict[str, Any]]] = {
    "integer": [{"type": "boolean"}, {"type": "string", "pattern": r"^\s*[+-]?[\d_]+(\.0*)?\s*$"}],
    "number": [
        {"type": "boolean"},
        {"type": "string", "pattern": r"(?i)^\s*[+-]?(\.?\d[\d_.e+-]*|inf(inity)?|nan)\s*$"},
    ],
    "boolean": [
        {"enum": [0, 1]},
        {"type": "string", "pattern": r"(?i)^(0|1|off|on|f|t|false|true|n|y|no|yes)$"},
    ],
}


class BodyCheck:
    """The schemas of one endpoint, ready to check bodies.

    Args:
        schemas: What the workers publish; a body that fits one of them is right.
    """

    def __init__(self, schemas: Sequence[Mapping[str, Any]]) -> None:
        self._schemas = [relaxed(schema) for schema in schemas]
        self._validators = [_validator(schema) for schema in self._schemas]

    def problem(self, request: Request, *, is_described: bool) -> str | None:
        """Return what is wrong with the body of a request, or None.

        Args:
            request: The request; its body is a JSON object.
            is_described: False to leave out the details, which take time.
        """
        body = orjson.loads(request.body)
        if any(validator.is_valid(body) for validator in self._validators):
            return None
        details = "the API of the workers describes it (/openapi.json of vllm serve)"
        if is_described and len(request.body) <= MAX_DESCRIBED_BYTES:
            details = self._details(body)
        return f"its body does not fit {request.endpoint}: {details}"

    def _details(self, body: Any) -> str:
        try:
            self._validators[0].validate(body)
        except ValidationError as error:
            return _words(error, self._schemas[0])
        raise AssertionError("the body was found wrong before")


def body_check_of(schemas: Sequence[Mapping[str, Any]]) -> BodyCheck | None:
    """Return the check of these schemas; None if there are none, or one of them is not usable."""
    if not schemas:
        return None
    try:
        return BodyCheck(schemas)
    except (ValidationError, ValueError, RecursionError) as error:
        log.warning("schemas.unusable", error=one_line(str(error), 200))
        return None


def relaxed(schema: Any) -> Any:
    """Return a schema that also takes what pydantic reads as a number or as a boolean."""
    if isinstance(schema, list):
        return [relaxed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: relaxed(value) for name, value in schema.items()}
    if isinstance(made.get("oneOf"), list):  # a relaxed value may fit several
        made.setdefault("anyOf", made.pop("oneOf"))
    kind = made.get("type")
    if not isinstance(kind, str) or kind not in _TEXTS:
        return made
    return {"anyOf": [made, *(each | _LAX for each in _TEXTS[kind])]}


def _validator(schema: dict[str, Any]) -> Draft202012Validator:
    options = RegexOptions(size_limit=MAX_PATTERN_BYTES)
    return Draft202012Validator(
        schema, mask="this value", pattern_options=options, retriever=_no_retrieval
    )


def _no_retrieval(uri: str) -> Any:
    raise ValueError(f"the schema refers to {uri}, which is not a part of it")


def _words(error: ValidationError, schema: Any) -> str:
    place = ".".join(map(str, error.instance_path)) or "the body"
    keyword = error.schema_path[-1]
    if keyword not in ("anyOf", "type"):
        return f"{place}: {error.message}"
    at_error = reduce(lambda part, step: part[step], error.schema_path[:-1], schema)
    shown = one_line(orjson.dumps(error.instance).decode(), MAX_SHOWN)
    return f"{place} must be {' or '.join(dict.fromkeys(_expected(at_error)))}, not {shown}"


def _expected(schema: Mapping[str, Any]) -> list[str]:
    """Return the names of what a schema takes."""
    if "anyOf" in schema:
        meant = [each for each in schema["anyOf"] if "$comment" not in each]
        return [name for each in meant for name in _expected(each)]
    if "$ref" in schema:
        return [schema["$ref"].rpartition("/")[2]]
    if "const" in schema:
        return [repr(schema["const"])]
    return [str(schema.get("type", "something else"))]

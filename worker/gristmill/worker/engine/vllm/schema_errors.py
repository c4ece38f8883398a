"""Name the keyword for which the structured-output backend refuses a JSON Schema.

vLLM's error says that "features" are not supported, and not which. `in_process` calls this module for a 400.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from gristmill.shared.answers import mapping
from gristmill.shared.one_line import one_line
from gristmill.worker.engine.interface import Response
from gristmill.worker.engine.vllm import compat

MAX_SCHEMA_BYTES = 65_536
"""Largest schema that is searched: each step of the search converts a part of it again."""

_TELLING = (b"JSON schema contains features not supported", b"transform json schema into a grammar")
"""Parts of vLLM's messages about a schema (`validate_xgrammar_grammar` in backend_xgrammar.py)."""

_DEFINITIONS = ("$defs", "definitions")

_NAMED = (*_DEFINITIONS, "properties", "patternProperties", "dependentSchemas")
"""Keywords whose value is an object of schemas by name."""

_NOT_SCHEMAS = ("enum", "const", "default", "examples")
"""Keywords whose value holds no schema."""

Refuses = Callable[[Any], bool]


async def with_keyword(response: Response, body: bytes) -> Response:
    """Return a refusal of a schema with the keyword at fault; any other response unchanged.

    Args:
        response: The engine's response.
        body: The body of the request.
    """
    if response.status != HTTPStatus.BAD_REQUEST or not any(
        text in response.body for text in _TELLING
    ):
        return response
    schema = _schema_in(body)
    if schema is None or len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        return response
    found = await asyncio.to_thread(find_keyword, schema, compat.schema_refusal())
    return _reworded(response, found) if found else response


def find_keyword(schema: Any, refuses: Refuses) -> str | None:
    """Return the keyword at fault in a schema and its place; None if the whole schema is accepted.

    It descends to the innermost schema that is refused on its own, and then leaves out one keyword at a time.

    Args:
        schema: The JSON Schema.
        refuses: Whether the backend refuses a schema.
    """
    if not refuses(schema):
        return None
    place, node = "#", schema
    while found := next((each for each in _parts(node) if refuses(_alone(each[1]))), None):
        place, node = f"{place}/{found[0]}", found[1]
    names = [name for name in mapping(node) if name not in ("type", *_DEFINITIONS)]
    others = ({other: node[other] for other in node if other != name} for name in names)
    at_fault = [name for name, rest in zip(names, others, strict=True) if not refuses(_alone(rest))]
    return f"{', '.join(at_fault or names) or 'type'} at {place}"


def _alone(part: Any) -> Any:
    """Return a part of a schema without definitions; a reference to one becomes a schema that takes anything."""
    if isinstance(part, list):
        return [_alone(each) for each in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return {}
    return {name: _alone(value) for name, value in part.items() if name not in _DEFINITIONS}


def _parts(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schemas directly inside a schema, each with its place."""
    for name, value in mapping(node).items():
        if name in _NOT_SCHEMAS:
            continue
        if isinstance(value, list):
            inner = [(f"{name}/{index}", each) for index, each in enumerate(value)]
        elif name in _NAMED:
            inner = [(f"{name}/{key}", each) for key, each in mapping(value).items()]
        else:
            inner = [(name, value)]
        yield from ((place, each) for place, each in inner if isinstance(each, dict))


def _schema_in(body: bytes) -> Any:
    """Return the JSON Schema of a chat, a completion or a response; None if the body has none."""
    fields = mapping(json.loads(body))
    formats = (fields.get("response_format"), mapping(fields.get("text")).get("format"))
    for each in map(mapping, formats):
        schema = mapping(each.get("json_schema")).get("schema", each.get("schema"))
        if schema is not None:
            return schema
    given = mapping(fields.get("structured_outputs")).get("json")
    return json.loads(given) if isinstance(given, str) else given


def _reworded(response: Response, keyword: str) -> Response:
    answer = json.loads(response.body)
    error = answer["error"]
    error["message"] = (
        f"the schema's keyword {one_line(keyword, 200)} is not supported; leave it out, or ask the operator for"
        f" another backend (-- --structured-outputs-config.backend guidance): {error['message']}"
    )
    return replace(response, body=json.dumps(answer, ensure_ascii=False).encode())

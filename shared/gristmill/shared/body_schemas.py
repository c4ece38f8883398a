"""The JSON Schemas of endpoints: workers publish them when they register, stewards check bodies against them.

A worker takes them from the OpenAPI document of its server. It publishes the part that its endpoints need, as JSON,
compressed with zlib and in base64: some 40 KB for all endpoints of vLLM.
"""

import base64
import binascii
import zlib
from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import orjson

from gristmill.shared.answers import mapping
from gristmill.shared.queue import Queue

MAX_PUBLISHED_BYTES = 256 * 2**10
"""Most bytes of one worker's schemas in Redis; larger ones are not published."""

MAX_SCHEMA_BYTES = 4 * 2**20
"""Most bytes of their JSON, which bounds the memory of a reader."""

_COMPONENTS = "#/components/schemas/"

_UNORDERED = ("allOf", "anyOf", "enum", "oneOf", "required", "type")
"""Keywords of JSON Schema whose lists mean the same in any order."""


def published_facts(openapi: Mapping[str, Any], endpoints: Collection[str]) -> dict[str, str]:
    """Return the facts of a worker that publish its schemas; empty if it has none, or too large ones.

    Args:
        openapi: OpenAPI document of its server.
        endpoints: Paths that it serves.
    """
    if not str(openapi.get("openapi")).startswith("3.1"):  # older ones are no JSON Schemas
        return {}
    schemas = {
        path: schema for path in sorted(endpoints) if (schema := _body_schema(openapi, path))
    }
    if not schemas:
        return {}
    components = mapping(mapping(openapi.get("components")).get("schemas"))
    needed = _reachable(list(schemas.values()), components)
    document = {"paths": schemas, "components": {"schemas": needed}}
    data = _canonical(document)
    text = base64.b64encode(zlib.compress(data, 9)).decode()
    if len(text) > MAX_PUBLISHED_BYTES or len(data) > MAX_SCHEMA_BYTES:
        return {}
    digest = blake2b(data, digest_size=8).hexdigest()
    return {"body_schemas": text, "body_schemas_digest": digest}


async def read_body_schemas(queue: Queue, endpoint: str) -> list[dict[str, Any]]:
    """Return the different schemas of an endpoint that the live workers of a queue publish.

    The list is empty if no worker serves the endpoint, or if one of them publishes no schema: then no body can be
    called wrong.
    """
    redis: Any = queue.redis
    leases = (await queue.stats()).workers
    worker_of: dict[bytes, str] = {}
    for worker in (worker for worker, remaining_ms in leases.items() if remaining_ms > 0):
        key = queue.keys.worker(worker)
        endpoints, digest = await redis.hmget(key, "endpoints", "body_schemas_digest")
        if endpoint not in (endpoints or b"").decode(errors="replace").split(","):
            continue
        if not digest:
            return []
        worker_of[digest] = worker
    texts = [
        await redis.hget(queue.keys.worker(worker), "body_schemas") for worker in worker_of.values()
    ]
    schemas = [schema_of(text or b"", endpoint) for text in texts]
    return [schema for schema in schemas if schema] if all(schemas) else []


def schema_of(text: bytes, endpoint: str) -> dict[str, Any] | None:
    """Return the schema of an endpoint from a worker's fact `body_schemas`; None if it has none that can be read."""
    try:
        unpacked = zlib.decompressobj().decompress(base64.b64decode(text), MAX_SCHEMA_BYTES)
        document = orjson.loads(unpacked)
        return {**document["paths"][endpoint], "components": document["components"]}
    except (binascii.Error, zlib.error, ValueError, TypeError, KeyError):
        return None


def _canonical(schema: Any) -> bytes:
    """Return a schema as JSON in one order, so that equal schemas of two workers have one digest.

    A worker makes parts of its schemas from sets, whose order differs from process to process.
    """
    return _sorted_json(_in_order(schema))


def _sorted_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _in_order(schema: Any, keyword: str = "") -> Any:
    if isinstance(schema, dict):
        return {name: _in_order(value, name) for name, value in schema.items()}
    if isinstance(schema, list):
        parts = [_in_order(part) for part in schema]
        return sorted(parts, key=_sorted_json) if keyword in _UNORDERED else parts
    return schema


def _body_schema(openapi: Mapping[str, Any], path: str) -> Any:
    try:
        content = openapi["paths"][path]["post"]["requestBody"]["content"]
        return content["application/json"]["schema"]
    except (KeyError, TypeError):
        return None


def _reachable(found: list[Any], components: Mapping[str, Any]) -> dict[str, Any]:
    """Return the components to which these schemas refer, directly or by way of others."""
    needed: dict[str, Any] = {}
    while found:
        for name in set(_references(found.pop())) - needed.keys():
            if name in components:
                needed[name] = components[name]
                found.append(components[name])
    return needed


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        target = schema.get("$ref")
        if isinstance(target, str) and target.startswith(_COMPONENTS):
            yield target.removeprefix(_COMPONENTS)
    nested = (
        schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    )
    for each in nested:
        yield from _references(each)

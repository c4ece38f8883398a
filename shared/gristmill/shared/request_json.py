"""Read one JSON element as a `Request`: a line of a file, or an element of the inbox.

`gristmill submit` and the gateway call this for each line. The worker calls it for each element that it
admits from the inbox. So the three accept and refuse the same elements. An element has one of three
forms:

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}   OpenAI's
    {"body": {...}, "endpoint": "/v1/completions", "priority": "high", ...}              envelope
    {"prompt": "..."}  {"messages": [...]}  {"input": "..."}                             plain body
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from gristmill.shared.errors import InvalidRequest
from gristmill.shared.json_encoding import check_metadata
from gristmill.shared.json_parts import check_parts
from gristmill.shared.one_line import shown
from gristmill.shared.operations import max_element_bytes
from gristmill.shared.prefix import prefix_of_key
from gristmill.shared.request import PLAIN, Request

ENVELOPE: Mapping[str, tuple[type, ...]] = {
    "body": (dict,),
    "id": (str,),
    "endpoint": (str,),
    "tenant": (str,),
    "priority": (str,),
    "deadline_s": (int, float),
    "delay_s": (int, float),
    "max_attempts": (int,),
    "batch": (str,),
    "prefix_key": (str,),
    "metadata": (dict,),
    "custom_id": (str,),
    "method": (str,),
    "url": (str,),
}
"""Fields allowed next to `body`, and their JSON types; a null field counts as absent."""

OPENAI_FIELDS = ("custom_id", "method", "url")
"""OpenAI's fields, which are only allowed next to `body`."""

QUEUE_FIELDS = (
    "endpoint", "tenant", "deadline_s", "delay_s", "max_attempts", "batch", "prefix_key"
)  # fmt: skip
"""Queue fields that are only allowed next to `body`. No OpenAI body has them, so the engine would
ignore them in one."""

MAX_CUSTOM_ID = 512
"""Most characters of a custom_id; rows, messages and Redis repeat it."""

NOT_JSON = "invalid_json_line"
"""OpenAI's code for a line that is not a JSON object."""

_TOO_LONG = (
    "shorten it, or ask the operator to raise GRISTMILL_MAX_REQUEST_BYTES for producers and workers"
)
_HOW_TO_NAME = (
    'write {"prompt": "..."} or {"messages": [...]}, or name the endpoint:'
    ' {"endpoint": "/v1/...", "body": {...}}'
)

_JSON_TYPES = {dict: "an object", list: "an array", str: "a string", int: "an integer"}
_JSON_TYPES |= {float: "a number", bool: "a boolean", type(None): "null"}
_NOT_A_NUMBER = re.compile(r"-?(NaN|Infinity)")


def request_from_json(
    raw: bytes,
    *,
    max_request_bytes: int,
    default_id: str | None = None,
    line_id: str | None = None,
    default_endpoint: str | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Request:
    """Return the request that one JSON element describes.

    Args:
        raw: The bytes of the element, without its line end.
        max_request_bytes: Most bytes of an accepted body (`GRISTMILL_MAX_REQUEST_BYTES`).
        default_id: Id for an element without one; None makes a new id.
        line_id: Id for line n of a file, `<run>-<n>`. It replaces the element's own id, which
            becomes its custom_id; without an own id, the custom_id is n.
        default_endpoint: Endpoint for an element that names none; a plain body then needs no known
            field.
        defaults: Fields of `Request` for elements that do not set them.

    Returns:
        The request; a `custom_id` is in its metadata, under that name.

    Raises:
        InvalidRequest: The element breaks a rule. The message has the place, the limit and the
            remedy, and nothing of the prompt.
    """
    element = object_from_json(raw, max_element_bytes(max_request_bytes))
    envelope = _envelope_of(element, default_endpoint)
    body = envelope.pop("body")
    if line_id is not None:
        _name_line(envelope, line_id)
    elif default_id is not None:
        envelope.setdefault("id", default_id)
    if metadata := envelope.get("metadata"):
        check_metadata(metadata)
    request = Request.from_body(body, **(dict(defaults or {}) | envelope))
    if len(request.body) > max_request_bytes:
        raise InvalidRequest(
            f"its body has {len(request.body):,} bytes; the limit is {max_request_bytes:,}; {_TOO_LONG}"
        )
    return request


def _name_line(envelope: dict[str, Any], line_id: str) -> None:
    name = envelope.get("id") or line_id.rpartition("-")[2]
    envelope["metadata"] = {"custom_id": name} | envelope.get("metadata", {})
    envelope["id"] = line_id


def object_from_json(raw: bytes, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object that these bytes are.

    Args:
        raw: The bytes.
        max_bytes: Most bytes of the element.

    Raises:
        InvalidRequest: They are too many, or no JSON object.
    """
    if len(raw) > max_bytes:
        raise InvalidRequest(
            f"it has more than {max_bytes:,} bytes, so its body is over the limit; {_TOO_LONG}"
        )
    check_parts(raw)
    if not raw.strip():
        raise InvalidRequest("it is empty; a request is a JSON object on one line", NOT_JSON)
    try:
        element = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(_syntax_error(raw, error), NOT_JSON) from None
    if not isinstance(element, dict):
        kind = _JSON_TYPES[type(element)]
        message = f'it is {kind}; a request is an object such as {{"prompt": "..."}}'
        raise InvalidRequest(message, NOT_JSON)
    return element


def _syntax_error(raw: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as decoding:
        byte = raw[decoding.start]
        return (
            f"it is not UTF-8: byte 0x{byte:02x} at position {decoding.start + 1}; save it as UTF-8"
        )
    if found := _NOT_A_NUMBER.search(text, max(0, error.pos - 1), error.pos + 10):
        return f"it is not JSON: {found[0]} at column {error.colno}; use null or a finite number"
    what = "a lone surrogate, half of a character," if "surrogate" in error.msg else error.msg
    return f"it is not JSON: {what} at column {error.colno}; write it with a JSON library"


def _envelope_of(element: dict[str, Any], default_endpoint: str | None) -> dict[str, Any]:
    """Return the body and the fields of `Request` next to it."""
    if "body" not in element and not element.keys().isdisjoint(OPENAI_FIELDS):
        raise InvalidRequest("it has no 'body'; put the request under 'body', beside its custom_id")
    if "body" not in element:
        return _plain(element, default_endpoint)
    envelope = {name: value for name, value in element.items() if value is not None}
    _check_fields(envelope)
    _take_openai_fields(envelope)
    if key := envelope.pop("prefix_key", None):
        envelope["prefix"] = prefix_of_key(key)
    if default_endpoint is not None:
        envelope.setdefault("endpoint", default_endpoint)
    if "endpoint" not in envelope:
        envelope["endpoint"] = _endpoint_of(
            envelope["body"], "its body has", "add 'endpoint' beside 'body'"
        )
    return envelope


def _plain(element: dict[str, Any], default_endpoint: str | None) -> dict[str, Any]:
    """Return the fields for a plain body. No OpenAI body has an `id`: it is the request's."""
    if found := [name for name in QUEUE_FIELDS if element.get(name) is not None]:
        raise InvalidRequest(
            f"{shown(found[0])} stands beside 'body', not in it; write"
            f' {{"body": {{...}}, "{found[0]}": ...}}'
        )
    body = {name: value for name, value in element.items() if name != "id"}
    fields = {
        "body": body,
        "endpoint": default_endpoint or _endpoint_of(body, "it has", _HOW_TO_NAME),
    }
    if (request_id := element.get("id")) is not None:
        if not isinstance(request_id, str):
            raise InvalidRequest(f"'id' is {_JSON_TYPES[type(request_id)]}; use {_JSON_TYPES[str]}")
        fields["id"] = request_id
    return fields


def _check_fields(envelope: Mapping[str, Any]) -> None:
    if unknown := sorted(envelope.keys() - ENVELOPE.keys()):
        names = ", ".join(shown(name) for name in unknown[:5])
        raise InvalidRequest(f"unknown field {names} beside 'body'; use {', '.join(ENVELOPE)}")
    if "body" not in envelope:
        raise InvalidRequest("'body' is null; it is the JSON object of the OpenAI request")
    for name, value in envelope.items():
        if type(value) not in ENVELOPE[name]:
            expected = " or ".join(_JSON_TYPES[kind] for kind in ENVELOPE[name])
            raise InvalidRequest(f"{name!r} is {_JSON_TYPES[type(value)]}; use {expected}")


def _take_openai_fields(envelope: dict[str, Any]) -> None:
    """Turn `custom_id`, `method` and `url` into the queue's own fields."""
    method = envelope.pop("method", "POST")
    if method != "POST":
        raise InvalidRequest(f"'method' is {shown(method)}; only POST can be queued")
    url = envelope.pop("url", None)
    if url is not None and envelope.setdefault("endpoint", url) != url:
        raise InvalidRequest(f"'url' is {shown(url)} and 'endpoint' another; leave one of them out")
    custom_id = envelope.pop("custom_id", None)
    if custom_id is not None and len(custom_id) > MAX_CUSTOM_ID:
        raise InvalidRequest(
            f"'custom_id' has {len(custom_id):,} characters; the limit is {MAX_CUSTOM_ID}"
        )
    if custom_id is not None:
        envelope["metadata"] = envelope.get("metadata", {}) | {"custom_id": custom_id}


def _endpoint_of(body: Mapping[str, Any], what: str, remedy: str) -> str:
    """Return the endpoint that the one known field of a body tells.

    Raises:
        InvalidRequest: The body has none of these fields, or several; `what` and `remedy` are words of the message.
    """
    found = [name for name in PLAIN if name in body]
    if len(found) == 1:
        return PLAIN[found[0]]
    seen = " and ".join(found) or "no prompt, messages or input"
    raise InvalidRequest(f"{what} {seen}, so its endpoint is not known; {remedy}")

"""Bodies of requests to the true engine, and its answers without what chance decides."""

import json
from typing import Any

CHANCE = {"id", "created", "created_at", "request_id"}

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "ok": {"type": "boolean"}},
    "required": ["city", "ok"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": SCHEMA, "strict": True},
}
NAMED = {"type": "function", "function": {"name": "look_up"}}


def body_of(fields: dict[str, Any]) -> bytes:
    common = {"model": "tiny", "max_tokens": 6, "seed": 7, "temperature": 0}
    return json.dumps(common | {"messages": [{"role": "user", "content": "hi"}]} | fields).encode()


def settled(value: Any) -> Any:
    """Return the value without the fields that differ from call to call."""
    if isinstance(value, dict):
        return {key: settled(each) for key, each in value.items() if key not in CHANCE}
    if isinstance(value, list):
        return [settled(each) for each in value]
    return value

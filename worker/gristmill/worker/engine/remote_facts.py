"""Ask a server what it serves, for `remote.py`.

OpenAI's API says little: a list of models with their names. Each other fact may be missing. The worker then
goes on without it, and `Missing` says what that means and what to do.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from gristmill.shared.body_schemas import published_facts
from gristmill.shared.errors import EngineDied, SettingsError
from gristmill.shared.request import ENDPOINTS
from gristmill.worker.engine.endpoints import served
from gristmill.worker.engine.remote_replies import is_name

MODELS = "/v1/models"

KEY_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""Statuses of a server that wants another API key, or one at all."""

VLLM = "vllm"
"""The `owned_by` of vLLM's models. Other servers also have `/version` or a field `priority`, which mean other things."""

ASSUMED_NUM_SEQS = 256
"""Requests that a server is assumed to run at a time. No API says it; vLLM's default is 256 on many devices."""

Ask = Callable[[str], Awaitable[tuple[int, Mapping[str, Any]]]]
"""Returns the status and the JSON object at a path; an empty one if the answer is no object.

It raises `EngineDied` if the server does not answer.
"""


@dataclass(frozen=True)
class Missing:
    """A fact that a server does not tell.

    Attributes:
        fact: Name of the fact.
        cause: What the server answered.
        effect: What the worker does without the fact.
        remedy: What to do about it.
    """

    fact: str
    cause: str
    effect: str
    remedy: str


@dataclass(frozen=True)
class ServerFacts:
    """What a server tells about itself.

    Attributes:
        models: Names of its models, the base model first; empty if it lists none.
        endpoints: Paths that it answers; all that a request may name if it does not say.
        max_model_len: Prompt plus output tokens of one sequence; 0 if it does not say.
        is_vllm: True if it says that it is vLLM.
        vllm_version: Version of vLLM; empty if it does not say, or is another server.
        body_schemas: See `EngineInfo`.
        missing: The facts that it does not tell.
    """

    models: tuple[str, ...]
    endpoints: tuple[str, ...]
    max_model_len: int
    is_vllm: bool
    vllm_version: str
    body_schemas: Mapping[str, str] = field(repr=False)
    missing: tuple[Missing, ...]


async def server_facts(ask: Ask, url: str) -> ServerFacts:
    """Ask a healthy server for its facts.

    Args:
        ask: Gets a path.
        url: The server's URL, for errors.

    Raises:
        SettingsError: The server refuses the API key.
        EngineDied: The server does not answer.
    """
    status, fields = await ask(MODELS)
    check_key(status, url + MODELS)
    cards = _cards(fields)
    first = cards[0] if cards else {}
    is_vllm, length = first.get("owned_by") == VLLM, _length(first)
    version = (await _optional(ask, "/version")).get("version") if is_vllm else None
    openapi = await _optional(ask, "/openapi.json")
    endpoints = _endpoints(openapi)
    body_schemas = published_facts(openapi, endpoints or ENDPOINTS)
    told = {
        "models": bool(cards),
        "max_model_len": not cards or length > 0,
        "endpoints": bool(endpoints),
        "body_schemas": bool(body_schemas),
        "server_kind": is_vllm,
    }
    return ServerFacts(
        models=tuple(card["id"] for card in cards),
        endpoints=endpoints or ENDPOINTS,
        max_model_len=length,
        is_vllm=is_vllm,
        vllm_version=version if is_name(version) else "",
        body_schemas=body_schemas,
        missing=tuple(each for each in _MISSING if not told[each.fact]),
    )


def check_key(status: int, address: str) -> None:
    """Check that a server does not refuse the API key.

    Raises:
        SettingsError: The status says that it does.
    """
    if status in KEY_REFUSED:
        raise SettingsError(
            f"{address} answered {status}; set VLLM_API_KEY to a key that the server accepts"
        )


def no_health_path(path: str) -> Missing:
    """Return the fact that a server has no health path, though it answers /v1/models."""
    return Missing(
        "health",
        f"GET {path} answered 404",
        "the worker checks the server by GET /v1/models",
        "set GRISTMILL_VLLM_HEALTH_PATH to the path at which the server reports its health, or to nothing",
    )


_MISSING = (
    Missing(
        "models",
        "GET /v1/models gives no list of models that the worker can read",
        "producers cannot refuse a request for a model that the server lacks",
        "name the model in each request as the server expects it",
    ),
    Missing(
        "max_model_len",
        "the model in /v1/models has no max_model_len",
        "forecasts and GET /v1/models of the gateway do not know how long a request may be",
        "keep prompt and max_tokens below the limit of the model; the server refuses longer requests",
    ),
    Missing(
        "endpoints",
        "/openapi.json names no endpoint of this API, or the worker cannot read it",
        "the worker takes requests for every endpoint, and the server's 404 fails those that it lacks",
        "send requests for the endpoints that the server has",
    ),
    Missing(
        "body_schemas",
        "/openapi.json has no JSON Schema of a body, is not OpenAPI 3.1, or the worker cannot read it",
        "stewards cannot check the bodies of batches; the server refuses bad ones when they run",
        "read the error file of a batch with bad bodies",
    ),
    Missing(
        "server_kind",
        "/v1/models does not say that the server is vLLM",
        "the worker sends no priority, and results do not name a version of vLLM",
        "set MAX_IN_FLIGHT so that no request waits in the server; the queue keeps the order of the others",
    ),
)

NO_SIZE = Missing(
    "max_num_seqs",
    "no server says how many requests it runs at a time",
    f"the worker assumes that the server runs {ASSUMED_NUM_SEQS} requests at a time",
    "set MAX_IN_FLIGHT to the number of requests that the server runs at a time",
)


def _cards(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    cards = fields.get("data")
    cards = cards if isinstance(cards, list) else []
    return [card for card in cards if isinstance(card, dict) and is_name(card.get("id"))]


def _length(card: Mapping[str, Any]) -> int:
    length = card.get("max_model_len")
    if not isinstance(length, int) or isinstance(length, bool):
        return 0
    return max(0, length)


def _endpoints(openapi: Mapping[str, Any]) -> tuple[str, ...]:
    paths = openapi.get("paths")
    return served(paths) if isinstance(paths, dict) else ()


async def _optional(ask: Ask, path: str) -> Mapping[str, Any]:
    """Return the JSON object at a path that a server may lack; an empty one if it does."""
    try:
        status, fields = await ask(path)
    except EngineDied:
        return {}
    return fields if status == HTTPStatus.OK else {}

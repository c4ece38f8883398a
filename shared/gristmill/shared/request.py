"""Define `Request`: what a producer submits, and the rules of its fields. No Redis here.

`records.py` has the stored form. `docs/protocol.md` describes the bytes that `submit_values` returns.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, Literal, Self

from ulid import ULID

from gristmill.shared.body_fields import check_body, output_limit
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.facts import encode_facts
from gristmill.shared.json_encoding import check_metadata, encode_body, encode_metadata
from gristmill.shared.known_fields import unknown_fields
from gristmill.shared.names import DEFAULT_TENANT, NAME, NAME_RULE, is_match
from gristmill.shared.one_line import shown
from gristmill.shared.prefix import prefix_of

Priority = Literal["high", "normal", "low"]
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
RESPONSES = "/v1/responses"
ENDPOINTS = (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/score",
    "/score",
    "/v1/rerank",
    "/rerank",
    "/v2/rerank",
    "/pooling",
    "/classify",
    "/tokenize",
    "/detokenize",
)
"""Endpoints that a request may name, most used first; a worker's model decides which of them the worker serves.

It is an allow-list, because vLLM's application also has routes for administration, which pause the engine, change
its weights or abort requests. A request from a queue must never reach those.
"""

PLAIN: Mapping[str, str] = {"prompt": COMPLETIONS, "messages": CHAT, "input": EMBEDDINGS}
"""Field of a body -> the endpoint of a request that names none."""

EXAMPLE = '{"messages": [{"role": "user", "content": "Hello"}]}'
"""Example of a body, for error messages."""

MAX_ESTIMATE = 10**15 - 1
"""Largest estimate of tokens: the scripts accept 15 digits."""

_OPTIONAL_NAME = re.compile(r"[A-Za-z0-9._:/@=+-]{0,128}")
_MODEL = re.compile(r"[^|\x00-\x1f]{0,256}")


def new_id(shard: str = "0") -> str:
    """Return a fresh request id; ids sort by the time at which they were made."""
    return f"{shard}-{ULID()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as a producer hands it to the queue.

    Args:
        body: JSON bytes of the OpenAI request; reaches the engine untouched.
        endpoint: One of `ENDPOINTS`.
        id: Name of the request and, later, of its result. The same id with the same body means
            the same request, so submitting it again changes nothing.
        priority: Lane; workers claim `high` before `normal`, and `normal` before `low`.
        tenant: The tenant whose share of the engine it uses; tenants share one lane fairly.
        batch: The group that it is counted in, or "".
        deadline_s: Seconds from now after which it expires unless finished; 0 for none.
        delay_s: Seconds from now before which no worker claims it.
        max_attempts: Most attempts, 1 to 100, if a retry may help.
        model: Name of the model, which routing and people read; the engine reads the body.
        prompt_tokens: Estimated prompt tokens, for fairness and claim budgets.
        max_tokens: Estimated output tokens.
        prefix: Name of the prompt prefix; requests that share a prefix have the same name. "" for none.
        reply: Name of the client that waits for the result, or "".
        metadata: Names and values that are returned with the result; at most `MAX_METADATA_BYTES`.
        facts: Names and values for workers; a name that begins with `!` is for those alone that
            understand it. `facts.py` has the rules.
        unknown_fields: Fields of the body that the engine ignores; `from_body` finds them.

    Raises:
        InvalidRequest: A field breaks its rule; the message names it, the limit and the remedy.
    """

    body: bytes
    endpoint: str = CHAT
    id: str = field(default_factory=new_id)
    priority: Priority = "normal"
    tenant: str = DEFAULT_TENANT
    batch: str = ""
    deadline_s: float = 0
    delay_s: float = 0
    max_attempts: int = 3
    model: str = ""
    prompt_tokens: int = 0
    max_tokens: int = 0
    prefix: str = ""
    reply: str = ""
    metadata: Mapping[str, Any] | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    unknown_fields: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def from_body(cls, body: Mapping[str, Any], **fields: Any) -> Self:
        """Return a request for a body; read endpoint, model, prefix and token estimates from it.

        Args:
            body: An OpenAI request as a mapping.
            **fields: Fields of `Request`; they override values read from the body.

        Raises:
            InvalidRequest: A field is unknown, or a field or the body breaks a rule.
        """
        check_names(fields.keys() - {"reply", "facts"}, FIELDS)
        if not isinstance(body, Mapping):
            raise InvalidRequest(
                f"the body is a {type(body).__name__}; use a dict such as {EXAMPLE}"
            )
        if body.get("stream"):
            raise InvalidRequest(
                "the body asks for stream: true; results are written whole, so remove stream"
            )
        check_body(body, fields.get("endpoint"))
        encoded = encode_body(body)
        model = body.get("model")
        told = next((PLAIN[name] for name in PLAIN if body.get(name) is not None), CHAT)
        read: dict[str, Any] = {
            "endpoint": told,
            "unknown_fields": unknown_fields(body, str(fields.get("endpoint", told))),
            "model": model if isinstance(model, str) else "",
            "prompt_tokens": len(encoded) // 4,
            "max_tokens": min(output_limit(body), MAX_ESTIMATE),
            "prefix": prefix_of(body),
        }
        return cls(body=encoded, **(read | fields))

    def __post_init__(self) -> None:
        if not is_id(self.id):
            raise InvalidRequest(f"id {shown(self.id)} is not allowed; use {NAME_RULE}")
        self._check_types()
        if reason := self._broken_name() or self._broken_value():
            raise InvalidRequest(reason, request_id=self.id)

    def _check_types(self) -> None:
        if not isinstance(self.body, bytes):
            raise InvalidRequest(
                f"the body is a {type(self.body).__name__}, not bytes; use Request.from_body for a dict",
                request_id=self.id,
            )
        if self.metadata is not None and not isinstance(self.metadata, Mapping):
            raise InvalidRequest("metadata is an object of names and values", request_id=self.id)
        if self.metadata:
            check_metadata(self.metadata, self.id)

    def _broken_name(self) -> str | None:
        """Return which name breaks its rule, or None."""
        if not is_match(NAME, self.tenant):
            return f"tenant {shown(self.tenant)} is not allowed; use {NAME_RULE}"
        for name, value in (("batch", self.batch), ("reply", self.reply), ("prefix", self.prefix)):
            if not is_match(_OPTIONAL_NAME, value):
                return f"{name} {shown(value)} is not allowed; use {NAME_RULE}"
        if not is_match(_MODEL, self.model):
            return (
                f"model {shown(self.model)} is not allowed; use up to 256 characters without | or"
                " control characters"
            )
        if self.endpoint not in ENDPOINTS:
            return f"unknown endpoint {shown(self.endpoint)}; use one of {', '.join(ENDPOINTS)}"
        return None

    def _broken_value(self) -> str | None:
        """Return which other field breaks its rule, or None."""
        if self.priority not in PRIORITIES:
            return f"unknown priority {shown(self.priority)}; use high, normal or low"
        if not _is_int(self.max_attempts, 1, 100):
            return f"max_attempts is {shown(self.max_attempts)}; use 1 to 100"
        estimates = (self.prompt_tokens, self.max_tokens)
        if not all(_is_int(estimate, 0, MAX_ESTIMATE) for estimate in estimates):
            return "prompt_tokens and max_tokens are whole numbers, 0 to 10^15"
        if not (_is_duration(self.deadline_s) and _is_duration(self.delay_s)):
            return "deadline_s and delay_s are seconds from now, 0 to 1e9"
        return None

    @property
    def digest(self) -> str:
        """Digest of endpoint and body, 16 hex digits; it tells requests with the same id apart."""
        return blake2b(self.body, digest_size=8, key=self.endpoint.encode()).hexdigest()

    @property
    def num_bytes(self) -> int:
        """Stored bytes of metadata and body, without the header."""
        return len(self.body) + (len(encode_metadata(self.metadata)) if self.metadata else 0)

    def submit_values(self) -> tuple[str | int | bytes, ...]:
        """Return the eight values of this request in `lua/submit.lua`."""
        tail = (
            f"{self.batch}|{self.prompt_tokens}|{self.max_tokens}|{self.max_attempts}|{self.reply}"
            f"|{self.endpoint}|{self.model}|{self.prefix}|{encode_facts(self.facts)}"
        )
        metadata = encode_metadata(self.metadata) if self.metadata else b""
        return (
            self.id,
            self.tenant,
            self.priority,
            math.ceil(self.deadline_s * 1000),
            math.ceil(self.delay_s * 1000),
            self.digest,
            tail,
            metadata + b"\n" + self.body,
        )


FIELDS = tuple(
    known.name
    for known in fields(Request)
    if known.name not in {"body", "reply", "facts", "unknown_fields"}
)
"""Fields that go with a body; the left out ones belong to Gristmill."""


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Check that each keyword is known.

    Raises:
        InvalidRequest: A keyword is unknown; the message has the nearest known one and all others.
    """
    for name in names:
        if name not in known:
            nearest = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ";"
            raise InvalidRequest(f"unknown keyword {shown(name)}{hint} Use {', '.join(known)}")


def is_id(value: object) -> bool:
    """Return whether a value can be the id of a request."""
    return is_match(NAME, value)


def _is_int(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _is_duration(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e9  # type: ignore[operator]  # a number by now

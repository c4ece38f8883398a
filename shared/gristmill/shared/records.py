"""Request, Record and Claimed: what travels to a worker, and how it is written down. No Redis here.

The bytes of a record are described in `docs/protocol.md`; `lua/includes/records.lua` reads the header.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

import orjson
from ulid import ULID

from gristmill.shared.errors import InvalidRequest

Priority = Literal["high", "normal", "low"]
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
ENDPOINTS = (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    "/v1/responses",
    "/v1/messages",
    "/v1/score",
    "/v1/rerank",
    "/pooling",
    "/tokenize",
)
"""What a request may ask for; whether a worker serves it depends on its model."""

PLAIN: Mapping[str, str] = {"prompt": COMPLETIONS, "messages": CHAT, "input": EMBEDDINGS}
"""The field of a body that tells its endpoint, where nobody names one."""

DEFAULT_MAX_TOKENS = 256
"""Output tokens assumed for a body that sets no limit; only fairness and claims use the estimate."""

MAX_ESTIMATE = 10**15 - 1
"""Largest estimate of tokens: what the scripts take, 15 digits."""

PREFIX_CHARS = 1024
"""Characters of a prompt that name its prefix: some 16 blocks of vLLM's prefix cache."""

MIN_SYSTEM_CHARS = 256
"""A system message as long as this names the prefix by itself."""

MAX_PREFIX_MESSAGES = 8

_NAME = re.compile(r"[A-Za-z0-9._:/@=+-]{1,128}")
_OPTIONAL_NAME = re.compile(r"[A-Za-z0-9._:/@=+-]{0,128}")
_MODEL = re.compile(r"[^|\x00-\x1f]{0,256}")
_NAME_RULE = "1 to 128 letters, digits or any of . _ : / @ = + -"


def new_id(shard: str = "0") -> str:
    """Return a fresh request id; ids sort by the time at which they were made."""
    return f"{shard}-{ULID()}"


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Make sure that metadata can be written down.

    Raises:
        InvalidRequest: As `encode_body`.
    """
    _encode("metadata", metadata)


def check_tenant(name: object) -> None:
    """Make sure that a name may be a tenant's.

    Raises:
        InvalidRequest: Says what names are made of.
    """
    if not _is_match(_NAME, name):
        raise InvalidRequest(f"tenant {shown(name)} is not allowed; use {_NAME_RULE}")


def encode_body(body: Mapping[str, Any]) -> bytes:
    """Return the JSON of a body.

    Raises:
        InvalidRequest: The body has a lone surrogate, a number that is not finite, or a type that
            JSON lacks.
    """
    return _encode("body", body)


def _encode(what: str, value: Mapping[str, Any]) -> bytes:
    try:
        encoded = orjson.dumps(value)
        if b"null" in encoded:  # what orjson makes of a number that is not finite
            json.dumps(value, allow_nan=False, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        message = (
            f"the {what} cannot be written as JSON: {error}; use str, int, finite float, bool, None,"
            " list, dict"
        )
        raise InvalidRequest(message) from error
    return encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as a producer hands it to the queue.

    Args:
        body: JSON bytes of the OpenAI request; reaches the engine untouched.
        endpoint: One of `ENDPOINTS`.
        id: Names the request and, later, its result. The same id with the same body is the same
            request: submitting it again changes nothing.
        priority: Lane; `high` is claimed before `normal`, that before `low`.
        tenant: Whose share of the engine it uses; tenants share one lane fairly.
        batch: The group that it is counted in, or "".
        deadline_s: Seconds from now after which it expires unless finished; 0 for none.
        delay_s: Seconds from now before which no worker claims it.
        max_attempts: 1 to 100; failures that a retry may mend are tried this often.
        model: For people and routing; the engine reads the body.
        prompt_tokens: Estimate, for fairness and claim budgets.
        max_tokens: Estimate of the output.
        prefix: What requests with a common prompt prefix share, or "".
        reply: The client that waits, or "".
        metadata: Returned with the result.

    Raises:
        InvalidRequest: A field breaks its rule; the message names it, the limit and the remedy.
    """

    body: bytes
    endpoint: str = CHAT
    id: str = field(default_factory=new_id)
    priority: Priority = "normal"
    tenant: str = "default"
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

    def __post_init__(self) -> None:
        if not _is_match(_NAME, self.id):
            raise InvalidRequest(f"id {shown(self.id)} is not allowed; use {_NAME_RULE}")
        self._check_names()
        if self.endpoint not in ENDPOINTS:
            known = ", ".join(ENDPOINTS)
            raise InvalidRequest(
                f"request {self.id}: unknown endpoint {shown(self.endpoint)}; use one of {known}"
            )
        if self.priority not in PRIORITIES:
            raise InvalidRequest(
                f"request {self.id}: unknown priority {shown(self.priority)}; use high, normal or low"
            )
        if not _is_int(self.max_attempts, 1, 100):
            raise InvalidRequest(
                f"request {self.id}: max_attempts is {self.max_attempts}; use 1 to 100"
            )
        if not (
            _is_int(self.prompt_tokens, 0, MAX_ESTIMATE)
            and _is_int(self.max_tokens, 0, MAX_ESTIMATE)
        ):
            raise InvalidRequest(
                f"request {self.id}: prompt_tokens and max_tokens are whole numbers, 0 to 10^15"
            )
        if self.metadata is not None and not isinstance(self.metadata, Mapping):
            raise InvalidRequest(f"request {self.id}: metadata is an object of names and values")
        if not (_is_duration(self.deadline_s) and _is_duration(self.delay_s)):
            raise InvalidRequest(
                f"request {self.id}: deadline_s and delay_s are seconds from now, 0 to 1e9"
            )

    def _check_names(self) -> None:
        if not _is_match(_NAME, self.tenant):
            raise InvalidRequest(
                f"request {self.id}: tenant {shown(self.tenant)} is not allowed; use {_NAME_RULE}"
            )
        for name, value in (("batch", self.batch), ("reply", self.reply), ("prefix", self.prefix)):
            if not _is_match(_OPTIONAL_NAME, value):
                raise InvalidRequest(
                    f"request {self.id}: {name} {shown(value)} is not allowed; use {_NAME_RULE}"
                )
        if not _is_match(_MODEL, self.model):
            raise InvalidRequest(
                f"request {self.id}: model {shown(self.model)} is not allowed; use up to 256 characters without | or control characters"
            )

    @property
    def digest(self) -> str:
        """What tells two requests under one id apart: 16 hex digits over endpoint and body."""
        return blake2b(self.body, digest_size=8, key=self.endpoint.encode()).hexdigest()

    @property
    def num_bytes(self) -> int:
        """Bytes of what is stored beside the header: metadata and body."""
        return len(self.body) + (len(_encode("metadata", self.metadata)) if self.metadata else 0)

    def submit_values(self) -> tuple[str | int | bytes, ...]:
        """Return the eight values of this request in `lua/submit.lua`."""
        tail = (
            f"{self.batch}|{self.prompt_tokens}|{self.max_tokens}|{self.max_attempts}|{self.reply}"
            f"|{self.endpoint}|{self.model}|{self.prefix}|"
        )
        metadata = _encode("metadata", self.metadata) if self.metadata else b""
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


def shown(value: object) -> str:
    """Return a value for a message, cut to what a person reads."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}... ({len(text):,} characters)"


def _is_match(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_int(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _is_duration(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e9  # type: ignore[operator]  # a number by now


def request_from_body(body: Mapping[str, Any], **fields: Any) -> Request:
    """Return a request for a body; endpoint, model and token estimates are read from it.

    Args:
        body: An OpenAI request as a mapping.
        **fields: Fields of `Request`; what is given here wins.

    Raises:
        InvalidRequest: A field or the body breaks a rule.
    """
    if body.get("stream"):
        raise InvalidRequest(
            "the body asks for stream: true; results are written whole, so remove stream"
        )
    encoded = encode_body(body)
    model = body.get("model")
    estimates: dict[str, Any] = {
        "endpoint": next((PLAIN[name] for name in PLAIN if name in body), CHAT),
        "model": model if isinstance(model, str) else "",
        "prompt_tokens": len(encoded) // 4,
        "max_tokens": _output_limit(body),
        "prefix": _prefix_of(body),
    }
    return Request(body=encoded, **(estimates | fields))


def prefix_of_key(key: str) -> str:
    """Return the name under which requests with one prefix key stand together; any text is a key."""
    return blake2b(key.encode(errors="surrogatepass"), digest_size=4).hexdigest()


def _output_limit(body: Mapping[str, Any]) -> int:
    """Return the tokens of all the outputs that a body asks for, at most."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    each = limit if type(limit) is int and limit > 0 else DEFAULT_MAX_TOKENS
    n = body.get("n")
    return min(each * (n if type(n) is int and n > 0 else 1), MAX_ESTIMATE)


def _prefix_of(body: Mapping[str, Any]) -> str:
    """Return a name for what the prompt begins with, or "" if that is too short to matter.

    OpenAI's `prompt_cache_key` if there is one; else a long system message; else the first 1,024 characters of
    all that the model reads; else the system message, however short. Each request is looked at by itself, so
    producers that do not know each other agree (docs/decisions/0014-scheduling.md).
    """
    key = body.get("prompt_cache_key")
    if isinstance(key, str) and key:
        return prefix_of_key(key)
    system, rest = _beginnings(body)
    begins = system
    if len(system) < MIN_SYSTEM_CHARS and len(system) + len(rest) >= PREFIX_CHARS:
        begins = system + rest
    return prefix_of_key(begins[:PREFIX_CHARS]) if begins else ""


def _beginnings(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return the beginning of the system message, and of what follows it."""
    prompt, messages = body.get("prompt"), body.get("messages")
    if isinstance(prompt, list):  # token ids, or several prompts
        prompt = str(prompt[:PREFIX_CHARS])
    if isinstance(prompt, str):
        return "", prompt[:PREFIX_CHARS]
    if not isinstance(messages, list):
        return "", ""
    first = [message for message in messages[:MAX_PREFIX_MESSAGES] if isinstance(message, dict)]
    texts = [_text(message.get("content"))[:PREFIX_CHARS] for message in first]
    has_system = bool(first) and first[0].get("role") in ("system", "developer")
    return ("".join(texts[:has_system]), "".join(texts[has_system:]))


def _text(content: object) -> str:
    """Return the text of a message, whose content may be a list of parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in parts if isinstance(text, str))
    return content if isinstance(content, str) else ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """One request as a claim returned it.

    Attributes:
        id: The request's id.
        delivery: The fence: which claim of this request this is; never used twice.
        attempt: From 1; releases and crashes are not counted.
        crashes: Engine deaths seen; above 0 the request is a suspect.
        record: The record's bytes.
    """

    id: str
    delivery: int
    attempt: int
    crashes: int
    record: "Record"


@dataclass(frozen=True, slots=True)
class Record:
    """The stored form of a request, read back."""

    enqueued_ms: int
    deadline_ms: int
    tenant: str
    priority: Priority
    digest: str
    batch: str
    prompt_tokens: int
    max_tokens: int
    max_attempts: int
    endpoint: str
    model: str
    origin: str
    metadata: bytes
    body: bytes

    @classmethod
    def parse(cls, data: bytes) -> "Record":
        """Read the three parts of `request:<id>`.

        Raises:
            ValueError: The bytes are no record of version 1.
        """
        header, metadata, body = data.split(b"\n", 2)
        fields = header.decode(errors="replace").split("|")
        if fields[0] != "1":
            raise ValueError(
                f"record version {fields[0]!r} is unknown; this worker reads version 1"
            )
        return cls(
            enqueued_ms=int(fields[1]),
            deadline_ms=int(fields[2]),
            tenant=fields[3],
            priority=fields[4],  # type: ignore[arg-type]  # written by submit, checked there
            digest=fields[5],
            batch=fields[6],
            prompt_tokens=int(fields[7]),
            max_tokens=int(fields[8]),
            max_attempts=int(fields[9]),
            endpoint=fields[11],
            model=fields[12],
            origin=fields[14],
            metadata=metadata,
            body=body,
        )

"""The requests that a measurement runs: a named load with a fixed seed, or the lines of a file.

The prompts of a named load are token ids that are small enough for any vocabulary. Each answer has
a fixed length (temperature 0, `ignore_eos`). So every policy does the same work, and the number of
tokens is known.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gristmill.shared.errors import InvalidRequest, SettingsError
from gristmill.shared.file_format import check_stream
from gristmill.shared.request import COMPLETIONS, Priority, Request
from gristmill.shared.request_json import request_from_json

FIRST_TOKEN, LAST_TOKEN = 100, 299
"""Range of the prompts' token ids. In any vocabulary they are words or pieces of words, not special
tokens."""

MIN_TOKENS = 4
"""Shortest prompt and answer in tokens, at any scale."""

NUM_GROUPS = 32
PREFIX_TOKENS = 512
"""`shared-prefix`: number of groups, and tokens of a group's common prefix at scale 1."""

MAX_BODY_BYTES = 32 * 2**20
"""Most bytes of a request in a file; the queue's default."""

FLOOD, NUM_QUIET = "flood", 7
"""`tenants`: the tenant that sends half of all requests first, and the number of tenants that send
the rest."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request of a load, for any model.

    Attributes:
        endpoint: Path of OpenAI's API, such as `/v1/completions`.
        body: The OpenAI request without `model`.
        prompt_tokens: Tokens of the prompt; an estimate for a file's requests.
        max_tokens: Largest number of output tokens.
        tenant: Tenant of the request.
        prefix: Name of the common prefix; "" for a request without one.
        priority: Lane in the queue.
        deadline_s: Seconds from the submit until the request expires; 0 for no deadline.
    """

    endpoint: str
    body: Mapping[str, Any]
    prompt_tokens: int
    max_tokens: int
    tenant: str = "default"
    prefix: str = ""
    priority: Priority = "normal"
    deadline_s: float = 0

    def request(self, model: str, salt: str = "") -> Request:
        """Return the request for the queue, under a new id.

        Args:
            model: Served name of the model.
            salt: Value of `cache_salt`; vLLM's prefix cache shares nothing between different salts.
        """
        extra = {"cache_salt": salt} if salt else {}
        return Request.from_body(
            {"model": model, **self.body, **extra},
            endpoint=self.endpoint,
            prompt_tokens=self.prompt_tokens,
            max_tokens=self.max_tokens,
            tenant=self.tenant,
            prefix=self.prefix,
            priority=self.priority,
            deadline_s=self.deadline_s,
        )


Lengths = tuple[int, int]
"""Tokens of a prompt and of its answer."""


def _lognormal(chance: random.Random) -> Lengths:
    """Return mostly short and a few long lengths, as chats and documents have them."""
    prompt = _between(16, chance.lognormvariate(5.0, 0.8), 1024)
    return prompt, _between(8, chance.lognormvariate(4.5, 0.9), 512)


def _uniform(chance: random.Random) -> Lengths:
    return chance.randint(16, 512), chance.randint(8, 256)


def _bimodal(chance: random.Random) -> Lengths:
    """Return four short requests for each long one.

    Policies with a barrier and `fcfs` suffer most from this mix.
    """
    if chance.random() < 0.8:
        return chance.randint(32, 96), chance.randint(8, 32)
    return chance.randint(768, 1024), chance.randint(384, 512)


def _suffix(chance: random.Random) -> Lengths:
    return chance.randint(16, 64), chance.randint(16, 64)


SHAPES: Mapping[str, Callable[[random.Random], Lengths]] = {
    "lognormal": _lognormal,
    "uniform": _uniform,
    "bimodal": _bimodal,
    "shared-prefix": _suffix,
    "tenants": _lognormal,
}
"""Function of each named load that returns the lengths of one request at scale 1, without the
prefix."""


def named(name: str, number: int, seed: int = 0, scale: float = 1.0) -> list[LoadRequest]:
    """Return a named load; the same arguments give the same requests.

    Args:
        name: One of `SHAPES`.
        number: Number of requests.
        seed: Seed of lengths and prompts.
        scale: Factor of all lengths; 1 suits a GPU, 0.25 a CPU.

    Raises:
        SettingsError: No load has this name, or an argument is not positive.
    """
    if name not in SHAPES:
        raise SettingsError(f"unknown load {name!r}; use one of {', '.join(SHAPES)}, or a file")
    if number < 1 or scale <= 0:
        raise SettingsError(
            f"a load of {number} requests at scale {scale:g} is empty; use at least 1 request and a scale above 0"
        )
    chance = random.Random(f"{name} {seed}")  # noqa: S311  # lengths, no secrets
    prefixes = _prefixes(chance, scale) if name == "shared-prefix" else [("", [])]
    return [
        _made(chance, SHAPES[name], scale, prefixes[i % len(prefixes)], _tenant(name, i, number))
        for i in range(number)
    ]


def file_of(name: str) -> Path | None:
    """Return the file with this name, or None.

    A named load takes precedence over a file of the same name.
    """
    return Path(name) if name not in SHAPES and Path(name).is_file() else None


def from_file(path: Path, limit: int | None = None) -> list[LoadRequest]:
    """Return the requests of a JSONL file, in any form that `gristmill submit` takes.

    Args:
        path: Path of the file. The models in it are ignored; the engine's own model runs all
            requests.
        limit: Largest number of requests; None for all.

    Raises:
        InvalidRequest: A line is not a request, or the file is empty; the message names the file
            and the line.
    """
    load: list[LoadRequest] = []
    with path.open("rb") as lines:
        check_stream(lines, str(path))
        for number, line in enumerate(lines, 1):
            if limit is not None and len(load) >= limit:
                break
            if line.strip():
                load.append(_from_line(path, number, line))
    if not load:
        raise InvalidRequest(f"{path} has no requests; put one JSON object on each line")
    return load


def _from_line(path: Path, number: int, line: bytes) -> LoadRequest:
    try:
        request = request_from_json(line, max_request_bytes=MAX_BODY_BYTES)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}, line {number}: {error}", error.code) from None
    body = {key: value for key, value in orjson.loads(request.body).items() if key != "model"}
    return LoadRequest(
        request.endpoint,
        body,
        request.prompt_tokens,
        request.max_tokens,
        request.tenant,
        request.prefix,
        request.priority,
        request.deadline_s,
    )


def _between(low: int, value: float, high: int) -> int:
    return max(low, min(high, round(value)))


def _tokens(chance: random.Random, number: int) -> list[int]:
    return [chance.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(number)]


def _scaled(tokens: int, scale: float) -> int:
    return max(MIN_TOKENS, int(tokens * scale))


def _prefixes(chance: random.Random, scale: float) -> list[tuple[str, list[int]]]:
    return [
        (f"group-{i:02}", _tokens(chance, _scaled(PREFIX_TOKENS, scale))) for i in range(NUM_GROUPS)
    ]


def _tenant(name: str, i: int, number: int) -> str:
    if name != "tenants":
        return "default"
    return FLOOD if i < number / 2 else f"quiet-{i % NUM_QUIET}"


def _made(
    chance: random.Random,
    shape: Callable[[random.Random], Lengths],
    scale: float,
    prefix: tuple[str, list[int]],
    tenant: str,
) -> LoadRequest:
    prompt_tokens, output_tokens = (_scaled(tokens, scale) for tokens in shape(chance))
    prompt = prefix[1] + _tokens(chance, prompt_tokens)
    body = {
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return LoadRequest(COMPLETIONS, body, len(prompt), output_tokens, tenant, prefix[0])

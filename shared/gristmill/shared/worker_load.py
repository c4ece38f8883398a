"""The load of a worker's engine: how many requests it runs, and how fast.

A worker sends it with each heartbeat, and `lua/beat.lua` writes it into the field `load` of `worker:<worker>`. The
gateway's page and `gristmill top` show it to people. No code decides by it.
"""

from dataclasses import asdict, dataclass
from typing import Self

import orjson

from gristmill.shared.answers import mapping

FIELD = "load"
"""Field of the HASH `worker:<worker>`. It is missing before the second heartbeat, and with workers before 0.2."""

VERSION = 1
"""Version of the JSON. A later one may add names; a reader ignores those that it does not know."""

MAX_WAITS_FOR = 200
"""Most characters of `waits_for`."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The load of an engine, from all queues of its worker together.

    Attributes:
        num_running: Requests that the worker has in its engine.
        num_waiting: Those of them that wait inside the engine for a place in its running batch.
        prompt_tokens_per_s: Prompt tokens prefilled per second, lately; None if the engine has no such counter, as a
            server at `VLLM_URL`.
        output_tokens_per_s: Tokens generated per second, lately; None in the same case.
        kv_cache_usage: Used share of the KV cache, from 0 to 1; None in the same case.
        waits_for: Reason why the worker does not claim, such as `the engine to start`; "" if it claims.
    """

    num_running: int = 0
    num_waiting: int = 0
    prompt_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    kv_cache_usage: float | None = None
    waits_for: str = ""

    def dump(self) -> bytes:
        """Return the value of the field."""
        return orjson.dumps({"v": VERSION, **asdict(self)})

    @classmethod
    def parse(cls, note: bytes | None) -> Self | None:
        """Read the value of the field; None if it is missing or cannot be read."""
        try:
            known = mapping(orjson.loads(note or b"null"))
        except ValueError:
            return None
        if not known:
            return None
        usage = _rate(known.get("kv_cache_usage"))
        return cls(
            num_running=_count(known.get("num_running")),
            num_waiting=_count(known.get("num_waiting")),
            prompt_tokens_per_s=_rate(known.get("prompt_tokens_per_s")),
            output_tokens_per_s=_rate(known.get("output_tokens_per_s")),
            kv_cache_usage=None if usage is None else min(usage, 1.0),
            waits_for=str(known.get("waits_for") or "")[:MAX_WAITS_FOR],
        )


def _count(value: object) -> int:
    return max(0, value) if isinstance(value, int) else 0


def _rate(value: object) -> float | None:
    return max(0.0, float(value)) if isinstance(value, int | float) else None

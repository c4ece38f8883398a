"""Read, requeue and delete the dead letters of one queue, which keep their bytes.

The CLI calls it as `queue.dead_letters`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson

from gristmill.shared.keys import Keys
from gristmill.shared.names import NAME, owned_id
from gristmill.shared.one_line import one_line
from gristmill.shared.records import tenant_of
from gristmill.shared.redis_types import AnyRedis, ScriptRunner
from gristmill.shared.request import new_id

MAX_CAUSE = 100
"""Most characters of `DeadLetter.cause`, which stands within one line."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A request or inbox element that could not be served.

    Attributes:
        id: The request's id; `inbox-<n>` for an element without one.
        reason: attempts_exhausted, engine_killed, unreadable, too_large or id_conflict.
        at_ms: Redis time in ms at which it became a dead letter.
        attempt: Number of its last attempt.
        crashes: Engine deaths that it saw.
        evidence: Facts about its end: an error, or the worker and engine that died.
        record: Bytes of the request's record or of the element. A refused element above 1 MiB has only
            its beginning here; its evidence has `num_bytes` and `sha1` of the whole.
    """

    id: str
    reason: str
    at_ms: int
    attempt: int
    crashes: int
    evidence: Any
    record: bytes

    @classmethod
    def parse(cls, dead_id: bytes, blob: bytes) -> Self:
        """Read a dead letter; return a damaged one as `unreadable`, so the others stay readable."""
        line, _, record = blob.partition(b"\n")
        try:
            return cls(**orjson.loads(line), record=record)
        except (ValueError, TypeError) as error:
            evidence = {"error": f"the line of evidence cannot be read: {error}"}
            return cls(dead_id.decode(errors="replace"), "unreadable", 0, 0, 0, evidence, blob)

    @property
    def cause(self) -> str:
        """The first words of the evidence as one line, such as an error's message; "" for no evidence."""
        evidence = self.evidence
        if isinstance(evidence, dict):
            facts = ", ".join(f"{name} {fact}" for name, fact in evidence.items())
            evidence = evidence.get("error") or facts
        return one_line(str(evidence), MAX_CAUSE) if evidence else ""


class DeadLetters:
    """The dead letters of one queue.

    Args:
        redis: The queue's client.
        keys: The queue's keys.
        scripts: The queue's scripts.
    """

    def __init__(self, redis: AnyRedis, keys: Keys, scripts: ScriptRunner) -> None:
        self._redis = redis
        self._keys = keys
        self._scripts = scripts

    async def newest(self, start: int = 0, count: int = 100) -> list[DeadLetter]:
        """Return dead letters, newest first.

        Args:
            start: Number of newer dead letters to skip.
            count: Most dead letters to return.
        """
        last = start + count - 1
        ids: Any = await self._redis.zrange(self._keys.dead_letters, start, last, desc=True)
        if not ids:
            return []
        blobs: Any = await self._redis.hmget(self._keys.dead_letter_info, ids)
        pairs = zip(ids, blobs, strict=True)
        return [DeadLetter.parse(dead_id, blob) for dead_id, blob in pairs if blob]

    async def get(self, dead_id: str) -> DeadLetter | None:
        """Return one dead letter, or None."""
        blob: Any = await self._redis.hget(self._keys.dead_letter_info, dead_id)
        return DeadLetter.parse(dead_id.encode(), blob) if blob else None

    async def owned_id(self, dead_id: str) -> str:
        """Return a fresh id for `requeue`, as the gateway names requests: `<tenant>.<new>@<queue>`.

        So the tenant can read the new request there. The id names no tenant if the gateway cannot have one of this
        name: a dot would let another tenant read it. It also names none if it were longer than 128 characters.
        """
        letter, fresh = await self.get(dead_id), new_id()
        tenant = tenant_of(letter.record) if letter else None
        if not tenant or "." in tenant:
            return fresh
        owned = f"{owned_id(tenant, fresh)}@{self._keys.queue}"
        return owned if NAME.fullmatch(owned) else fresh

    async def requeue(self, dead_id: str, new_id: str) -> str:
        """Submit a dead letter as a new request; returns accepted, queued, done or missing.

        A repeat with the same `new_id` changes nothing. The new request names the old one and
        belongs to no batch.
        """
        reply: bytes = await self._scripts.run("requeue", dead_id, new_id)
        return reply.decode()

    async def purge(self, dead_ids: Sequence[str]) -> int:
        """Delete dead letters, and return how many existed. Their results stay."""
        if not dead_ids:
            return 0
        removed: int = await self._scripts.run("purge", *dead_ids)
        return removed

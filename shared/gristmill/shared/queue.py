"""The operations of one queue: a method each, one Lua call each. No loops, no sleeps, no policy.

Producers and workers both come through here. Every call is safe to send twice, so whoever calls may
retry it after a lost reply (`retrying` in `connection.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import orjson
from redis.asyncio import Redis, RedisCluster

from gristmill.shared.errors import (
    InvalidRequest,
    LeaseLost,
    NotReplicated,
    QueueFull,
    SettingsError,
)
from gristmill.shared.keys import Keys
from gristmill.shared.operations import (
    MAX_WEIGHT,
    MIN_WEIGHT,
    Beat,
    Claim,
    DeadLetter,
    Delivery,
    HeldLease,
    Limits,
    Policy,
    Settlement,
    State,
    Stats,
    SubmitCode,
)
from gristmill.shared.records import Claimed, Record, Request, check_tenant
from gristmill.shared.results import Result

REAP_LIMIT = 100
"""Ids that one reap, crash, expire or cancel moves; keeps each of these scripts at 5 ms or so."""

REPLICATION_WAIT_MS = 1000
"""Longest wait of a submit for its replicas; a healthy one has it within a millisecond."""

VERBS = (
    "submit", "claim", "admit", "beat", "ack", "nack", "release", "reap", "cancel",
    "expire", "seal", "register", "bye", "crash", "requeue", "purge", "status", "stats",
)  # fmt: skip


ADDING_VERBS = {"submit", "requeue"}
"""What a Redis at its `maxmemory` refuses. Every other verb may go on: it ends requests, which frees
memory, or moves what is there."""


@cache
def script_source(verb: str) -> str:
    """Return the Lua text of a verb: its flags, the shared transitions, then its own file."""
    lua = files("gristmill.shared") / "lua"
    flags = "#!lua" if verb in ADDING_VERBS else "#!lua flags=allow-oom"
    texts = (flags, (lua / "transitions.lua").read_text(), (lua / f"{verb}.lua").read_text())
    return "\n".join(texts)


class Queue:
    """The operations of one queue.

    Args:
        redis: A client that neither decodes nor retries; `connection.connect` makes one.
        name: Which queue.
        limits: What bounds it.
    """

    def __init__(
        self, redis: Redis | RedisCluster, name: str = "default", limits: Limits | None = None
    ) -> None:
        self.redis = redis
        self.keys = Keys(name)
        self.limits = limits or Limits()
        self._scripts = {verb: redis.register_script(script_source(verb)) for verb in VERBS}

    async def _run(self, verb: str, *args: str | float | bytes) -> Any:
        return await self._scripts[verb](keys=[self.keys.prefix], args=args)

    async def submit(
        self, requests: Sequence[Request], *, lease: HeldLease | None = None
    ) -> list[SubmitCode]:
        """Accept requests, at most 500 a call, all or none.

        Args:
            requests: What to accept.
            lease: Accept them only while this lease is held: who has lost it submits nothing.

        Returns:
            A code for each: accepted, queued (this very request waits or runs already), done (it
            has a result) or conflict (its id belongs to another body or endpoint).

        Raises:
            QueueFull: The new ones do not fit under the caps.
            LeaseLost: The lease is not held any more.
            NotReplicated: They are in the queue, but on fewer than `min_replicas`; submit them again.
        """
        values = [value for request in requests for value in request.submit_values()]
        args = (self.limits.max_depth, self.limits.max_bytes, *values)
        keys = [self.keys.prefix]
        if lease:
            keys, args = [*keys, lease.key], (*args, lease.token)
        if self.limits.min_replicas:
            reply = await self._submit_replicated(keys, args)
        else:
            reply = await self._scripts["submit"](keys=keys, args=args)
        if reply[0] == b"LOST":
            raise LeaseLost(f"{lease.key if lease else ''} is held by another", "")
        if reply[0] == b"FULL":
            depth, queued_bytes = reply[1], reply[2]
            message = (
                f"queue {self.keys.queue} is full: {depth:,} of {self.limits.max_depth:,} requests and "
                f"{queued_bytes:,} of {self.limits.max_bytes:,} bytes; wait for workers to drain it, or "
                "raise GRISTMILL_MAX_DEPTH or GRISTMILL_MAX_BYTES"
            )
            raise QueueFull(message, depth, queued_bytes)
        return [code.decode() for code in reply[1:]]

    async def _submit_replicated(
        self, keys: Sequence[str], args: Sequence[str | float | bytes]
    ) -> Any:
        """Run `submit`, then wait for replicas; WAIT counts what its own connection has written."""
        if isinstance(self.redis, RedisCluster):
            raise SettingsError("min_replicas needs one primary, not a cluster")
        wanted = self.limits.min_replicas
        async with self.redis.client() as connection:
            script = self._scripts["submit"]
            reply = await script(keys=keys, args=args, client=connection)
            if (
                b"accepted" not in reply
            ):  # a repeat wrote nothing, and what it repeats is older than this
                await connection.hincrby(self.keys.stats, "submitted", 0)
            reached = await connection.wait(wanted, REPLICATION_WAIT_MS)
        if reached < wanted:
            raise NotReplicated(
                f"{reached} of {wanted} replicas have what was submitted to queue {self.keys.queue} after"
                f" {REPLICATION_WAIT_MS} ms; submit it again when they are back, or lower GRISTMILL_MIN_REPLICAS"
            )
        return reply

    async def claim(
        self,
        worker: str,
        nonce: str,
        max_requests: int,
        *,
        max_tokens: int = 2**53,
        max_suspects: int = 1,
        has_suspects: bool = False,
        ms_per_token: float = 0,
    ) -> Claim:
        """Lease waiting requests to a worker.

        Args:
            worker: A registered worker.
            nonce: New for each claim; a claim sent again under the same nonce returns the same.
            max_requests: At most 128.
            max_tokens: Estimated tokens of the whole claim; the first request always fits.
            max_suspects: How many suspects it may take.
            has_suspects: Whether it runs one already; a suspect of two deaths then waits.
            ms_per_token: Time between two tokens of one request on this worker's engine, 0 if unknown;
                under the policy `deadline` it tells which deadlines cannot be met.

        Raises:
            LeaseLost: The worker holds no lease.
        """
        reply = await self._run(
            "claim", worker, nonce, max_requests, max_tokens, max_suspects, int(has_suspects),
            self.limits.max_depth, self.limits.max_bytes, self.limits.result_ttl_ms, ms_per_token,
        )  # fmt: skip
        if reply[0] == b"LOST":
            raise LeaseLost(f"worker {worker} holds no lease on queue {self.keys.queue}", worker)
        _, now_ms, next_due_ms, inbox, flat, num_queued, num_workers = reply
        claimed = [
            Claimed(
                flat[i].decode(),
                int(flat[i + 1]),
                int(flat[i + 2]),
                int(flat[i + 3]),
                Record.parse(flat[i + 4]),
            )
            for i in range(0, len(flat), 5)
        ]
        pairs = sorted(_pairs(inbox), key=lambda pair: int(pair[0]))
        due_ms = next_due_ms if next_due_ms >= 0 else None
        return Claim(now_ms, due_ms, pairs, claimed, num_queued, num_workers)

    async def admit(self, worker: str, token: str, request: Request) -> str:
        """Turn an inbox element into a request; returns its code, or `gone` if it was admitted before."""
        reply = await self._run(
            "admit", worker, token, self.limits.result_ttl_ms, "request", *request.submit_values()
        )
        return str(reply.decode())

    async def bury(self, worker: str, token: str, dead_id: str, evidence: Mapping[str, Any]) -> str:
        """Turn an inbox element that cannot be read into a dead letter with its bytes."""
        reply = await self._run(
            "admit",
            worker,
            token,
            self.limits.result_ttl_ms,
            "garbage",
            dead_id,
            orjson.dumps(evidence),
        )
        return str(reply.decode())

    async def ack(self, worker: str, settlements: Sequence[Settlement]) -> list[int]:
        """Write terminal records, at most 128 a call.

        Returns:
            1 stored; 2 stored late, by a worker that no longer held it; 0 changed nothing.
        """
        values = [
            v
            for s in settlements
            for v in (s.id, s.delivery, s.status, s.outcome, s.prompt_tokens, s.output_tokens)
        ]
        codes: list[int] = await self._run("ack", worker, self.limits.result_ttl_ms, *values)
        return codes

    async def nack(
        self, worker: str, claimed: Claimed, delay_ms: int, error: Mapping[str, Any]
    ) -> str:
        """Give back a request for a retry after `delay_ms`.

        Returns:
            retried, dead_lettered (its attempts are used up, the error is its evidence) or stale.
        """
        values = (claimed.id, claimed.delivery, delay_ms, orjson.dumps(error))
        reply = await self._run("nack", worker, self.limits.result_ttl_ms, *values)
        return str(reply[0].decode())

    async def in_flight(self, worker: str) -> list[Delivery]:
        """Return what the queue believes that a worker holds."""
        held: Any = await self.redis.hgetall(self.keys.inflight(worker))
        return [Delivery(request_id.decode(), int(number)) for request_id, number in held.items()]

    async def release(self, worker: str, claimed: Iterable[Claimed | Delivery]) -> int:
        """Hand requests back to the front of their lanes, uncounted; returns how many went."""
        values = [v for item in claimed for v in (item.id, item.delivery)]
        released: int = await self._run("release", worker, *values)
        return released

    async def register(
        self, worker: str, info: Mapping[str, str | int], policy: Policy | None = None
    ) -> int:
        """Open a worker's lease and say what it serves; returns Redis time in ms.

        Args:
            worker: A name that no other has or had.
            info: What it serves.
            policy: How the queue orders what waits from now on, for all; None leaves that as it is.
        """
        flat = [v for item in info.items() for v in item]
        order = (policy.scheduling, int(policy.ageing_s * 1000)) if policy else ("", 0)
        now_ms: int = await self._run("register", worker, self.limits.lease_ms, *order, *flat)
        return now_ms

    async def beat(self, worker: str) -> Beat:
        """Renew a worker's lease.

        Raises:
            LeaseLost: Its requests were given away.
        """
        reply = await self._run("beat", worker, self.limits.lease_ms)
        if reply[0] == 0:
            raise LeaseLost(f"worker {worker} was reaped from queue {self.keys.queue}", worker)
        return Beat(reply[2], [request_id.decode() for request_id in reply[3:]])

    async def bye(self, worker: str) -> bool:
        """Close the lease of a worker that holds nothing; False if it still holds something."""
        return bool(await self._run("bye", worker))

    async def reap(self) -> dict[str, int]:
        """Make what dead workers held claimable again; returns worker -> ids moved."""
        reply = await self._run("reap", REAP_LIMIT, self.limits.result_ttl_ms)
        return {reply[i].decode(): reply[i + 1] for i in range(0, len(reply), 2)}

    async def crash(self, worker: str, evidence: Mapping[str, Any]) -> tuple[int, list[str]]:
        """Make what a dead engine held suspect; call again until nothing moves.

        Returns:
            How many ids it moved, and which of them are dead letters now.
        """
        moved, *killed = await self._run(
            "crash", worker, REAP_LIMIT, self.limits.result_ttl_ms, orjson.dumps(evidence)
        )
        return moved, [request_id.decode() for request_id in killed]

    async def cancel(self, ids: Sequence[str]) -> list[str]:
        """End requests; a code for each: queued or running (cancelled now), done, unknown."""
        codes: list[bytes] = []
        for start in range(0, len(ids), REAP_LIMIT):
            some = ids[start : start + REAP_LIMIT]
            codes += await self._run("cancel", self.limits.result_ttl_ms, *some)
        return [code.decode() for code in codes]

    async def expire(self) -> int:
        """End requests whose deadline has passed; returns how many."""
        limits = self.limits
        expired: int = await self._run(
            "expire", REAP_LIMIT, limits.result_ttl_ms, limits.dead_letter_ttl_ms
        )
        return expired

    async def seal(self, batch: str, total: int) -> int:
        """Say how many requests a batch has; returns how many are terminal so far."""
        done: int = await self._run("seal", batch, total)
        return done

    async def status(self, ids: Sequence[str]) -> list[tuple[State, str]]:
        """Return the state of each request and the worker that runs it, or ""."""
        reply = await self._run("status", *ids)
        return [(state.decode(), worker.decode()) for state, worker in reply]

    async def stats(self) -> Stats:
        """Return one consistent view of the queue."""
        reply = await self._run("stats")
        now_ms, counters, lanes, workers = reply[:4]
        num_delayed, num_inbox, num_dead, used_memory, max_memory, scheduling = reply[4:]
        return Stats(
            now_ms=now_ms,
            counters={k: int(v) for k, v in _pairs(counters)},
            depth_by_lane={k: int(v) for k, v in _pairs(lanes)},
            num_delayed=num_delayed,
            num_inbox=num_inbox,
            num_dead=num_dead,
            used_memory=used_memory,
            max_memory=max_memory,
            scheduling=scheduling.decode(),
            workers={k: int(v) - now_ms for k, v in _pairs(workers)},
        )

    async def weights(self) -> dict[str, float]:
        """Return the weights of tenants as claims take them; who has none counts as 1."""
        found: Any = await self.redis.hgetall(self.keys.weights)
        return {name.decode(errors="replace"): _weight(text) for name, text in found.items()}

    async def set_weights(self, weights: Mapping[str, float]) -> None:
        """Say how tenants share the engine under fair scheduling; it may change under a backlog.

        It counts for what is claimed from then on: what a tenant took ahead of the others at an old weight is
        made even first.

        Args:
            weights: Tenant -> weight, 0.001 to 1000; tenants not named keep theirs. 1 is forgotten, as all have it.

        Raises:
            InvalidRequest: A name or a weight is not allowed; then none is set.
        """
        for name, weight in weights.items():
            check_tenant(name)
            if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
                raise InvalidRequest(
                    f"tenant {name}: weight {weight:g} is not allowed; use {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"
                )
        others: dict[Any, Any] = {name: weight for name, weight in weights.items() if weight != 1}
        if others:
            await self.redis.hset(self.keys.weights, mapping=others)
        if equal := [name for name in weights if name not in others]:
            await self.redis.hdel(self.keys.weights, *equal)

    async def tenant_load(self, tenant: str) -> tuple[int, int]:
        """Return how many requests of a tenant are not terminal, and the bytes of their records."""
        fields = [f"{tenant}|requests", f"{tenant}|bytes"]
        requests, num_bytes = await self.redis.hmget(self.keys.tenant_load, fields)
        return int(requests or 0), int(num_bytes or 0)

    async def results(self, ids: Sequence[str]) -> list[Result | None]:
        """Return the terminal records that exist, None for the others; at most 500 ids a call."""
        if not ids:
            return []
        blobs: list[Any] = await self.redis.mget(
            [self.keys.result(request_id) for request_id in ids]
        )
        return [_result(*pair) if pair[1] else None for pair in zip(ids, blobs, strict=True)]

    async def forget(self, ids: Sequence[str]) -> None:
        """Delete results whose reader has put them in a safe place; at most 500 ids a call."""
        if ids:
            await self.redis.unlink(*(self.keys.result(request_id) for request_id in ids))

    async def dead_letters(self, start: int = 0, count: int = 100) -> list[DeadLetter]:
        """Return dead letters, newest first."""
        ids: Any = await self.redis.zrange(self.keys.dead, start, start + count - 1, desc=True)
        if not ids:
            return []
        blobs: Any = await self.redis.hmget(self.keys.deadinfo, ids)
        return [_dead_letter(*pair) for pair in zip(ids, blobs, strict=True) if pair[1]]

    async def dead_letter(self, dead_id: str) -> DeadLetter | None:
        """Return one dead letter, or None."""
        blob: Any = await self.redis.hget(self.keys.deadinfo, dead_id)
        return _dead_letter(dead_id.encode(), blob) if blob else None

    async def requeue(self, dead_id: str, new_id: str) -> str:
        """Submit a dead letter anew; returns accepted, queued, done or missing.

        Under one `new_id` it happens once. The new request names the old one and belongs to no batch.
        """
        reply = await self._run("requeue", dead_id, new_id)
        return str(reply.decode())

    async def purge(self, dead_ids: Sequence[str]) -> int:
        """Delete dead letters; returns how many there were. Their results stay."""
        if not dead_ids:
            return 0
        removed: int = await self._run("purge", *dead_ids)
        return removed


def _pairs(flat: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    return ((flat[i].decode(), flat[i + 1]) for i in range(0, len(flat), 2))


def _weight(text: bytes) -> float:
    """Read a weight that somebody may have set past `set_weights`, as `lua/transitions.lua` does."""
    try:
        weight = float(text)
    except ValueError:
        return 1.0
    return max(MIN_WEIGHT, min(weight, MAX_WEIGHT)) if weight > 0 else 1.0


def _result(request_id: str, blob: bytes) -> Result:
    """Read a record; one that somebody else has spoiled must not hide its neighbours."""
    try:
        return Result.parse(blob)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"the record under result:{request_id} cannot be read: {error}"
        return Result.unreadable(request_id, message)


def _dead_letter(dead_id: bytes, blob: bytes) -> DeadLetter:
    """Read a dead letter; one that somebody else has spoiled must not hide its neighbours."""
    line, _, record = blob.partition(b"\n")
    try:
        return DeadLetter(**orjson.loads(line), record=record)
    except (ValueError, TypeError) as error:
        evidence = {"error": f"the line of evidence cannot be read: {error}"}
        return DeadLetter(dead_id.decode(errors="replace"), "unreadable", 0, 0, 0, evidence, blob)

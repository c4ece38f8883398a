"""Offer the operations of one queue, a method each. Producers, workers and the CLI use it.

A method that changes requests runs one script of `lua/`; `cancel` runs one for each 100 ids. A method that only reads
or deletes a key sends the plain Redis command. No method sleeps, retries or decides anything. Every call may be sent
twice, so a caller may retry it after a lost reply (`retrying` in `redis_retry.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from redis.asyncio import Redis

from gristmill.shared.chunking import chunks
from gristmill.shared.dead_letters import DeadLetters
from gristmill.shared.errors import LeaseLost
from gristmill.shared.event_streams import EventStreams
from gristmill.shared.keys import Keys
from gristmill.shared.operations import (
    ANY_WORK,
    Beat,
    Claim,
    ClaimTerms,
    Delivery,
    HeldLease,
    Limits,
    SchedulingPolicy,
    Settlement,
    State,
    SubmitCode,
    max_element_bytes,
)
from gristmill.shared.producer_leases import ProducerLeases
from gristmill.shared.queue_pauses import Pauses
from gristmill.shared.queue_stats import Stats
from gristmill.shared.records import Claimed
from gristmill.shared.redis_types import AnyRedis
from gristmill.shared.replication import write_to_replicas
from gristmill.shared.request import Request
from gristmill.shared.results import Result
from gristmill.shared.scripts import Scripts
from gristmill.shared.summed_use import summed_use
from gristmill.shared.tenant_shares import TenantShares

MOVED_A_CALL = 100
"""Most ids that one reap, crash, expire or cancel moves; this keeps each script near 5 ms."""


class Queue:
    """The operations of one queue.

    Args:
        redis: A client that neither decodes nor retries; `connection.connect` makes one.
        name: Name of the queue.
        limits: Bounds of the queue.

    Attributes:
        scripts: The scripts of the queue; the methods below run them.
        dead_letters: Requests and inbox elements that could not be served.
        tenants: Weights of the tenants, and the load of each.
        pauses: Pauses of the queue and of its batches.
        producers: Leases of the producers that are still submitting.
        events: Streams of the events of requests.
    """

    def __init__(
        self, redis: AnyRedis, name: str = "default", limits: Limits | None = None
    ) -> None:
        self.redis = redis
        self.keys = Keys(name)
        self.limits = limits or Limits()
        self.scripts = Scripts(redis, self.keys.prefix)
        self.dead_letters = DeadLetters(redis, self.keys, self.scripts)
        self.tenants = TenantShares(redis, self.keys)
        self.pauses = Pauses(redis, self.keys, self.scripts)
        self.producers = ProducerLeases(self.scripts, self.limits.lease_ms)
        self.events = EventStreams(redis, self.keys, self.scripts)

    # -- what producers call ------------------------------------------------------------------------

    async def submit(
        self, requests: Sequence[Request], *, lease: HeldLease | None = None
    ) -> list[SubmitCode]:
        """Accept requests, at most 500 a call, all or none.

        Args:
            requests: Requests to accept.
            lease: Lease that the caller must hold; without it, nothing is submitted.

        Returns:
            A code for each: accepted, queued (this very request waits or runs already), done (it
            has a result) or conflict (its id belongs to another body or endpoint).

        Raises:
            QueueFull: The new requests exceed a limit of the queue.
            LeaseLost: The caller no longer holds the lease.
            NotReplicated: They are in the queue, but on fewer than `min_replicas`; submit them again.
        """
        values = [value for request in requests for value in request.submit_values()]
        if lease:
            values.append(lease.token)

        async def run(connection: Redis | None = None) -> Any:
            return await self.scripts.run(
                "submit", self.limits.max_depth, self.limits.max_bytes, *values,
                lease_key=lease.key if lease else None, connection=connection,
            )  # fmt: skip

        if min_replicas := self.limits.min_replicas:
            reply = await write_to_replicas(self.redis, self.keys, min_replicas, run)
        else:
            reply = await run()
        if reply[0] == b"LOST":
            raise LeaseLost(f"{lease.key if lease else ''} is held by another", "")
        if reply[0] == b"FULL":
            raise self.limits.exceeded(self.keys.queue, depth=reply[1], num_bytes=reply[2])
        return [code.decode() for code in reply[1:]]

    async def status(self, ids: Sequence[str]) -> list[tuple[State, str]]:
        """Return the state of each request and the worker that runs it, or ""."""
        reply = await self.scripts.run("status", *ids)
        return [(state.decode(), worker.decode()) for state, worker in reply]

    async def results(self, ids: Sequence[str]) -> list[Result | None]:
        """Return the terminal records that exist, None for the others; at most 500 ids a call."""
        if not ids:
            return []
        records: Any = await self.redis.mget([self.keys.result(request_id) for request_id in ids])
        pairs = zip(ids, records, strict=True)
        return [Result.read(request_id, record) if record else None for request_id, record in pairs]

    async def forget(self, ids: Sequence[str]) -> None:
        """Delete results that their reader has stored elsewhere; at most 500 ids a call."""
        if ids:
            await self.redis.unlink(*(self.keys.result(request_id) for request_id in ids))

    async def cancel(self, ids: Sequence[str]) -> list[str]:
        """Cancel requests; return a code for each.

        The codes are queued or running (its state before this cancel), done, and unknown.
        """
        codes: list[bytes] = []
        for some_ids in chunks(ids, MOVED_A_CALL):
            codes += await self.scripts.run("cancel", self.limits.result_ttl_ms, *some_ids)
        return [code.decode() for code in codes]

    async def seal(self, batch: str, total: int) -> int:
        """Set how many requests a batch has; return how many are terminal so far."""
        done: int = await self.scripts.run("seal", batch, total)
        return done

    async def is_answering(self) -> bool:
        """Make a small call to the server that has the queue; raise what any call would raise."""
        return bool(await self.redis.exists(self.keys.format))

    async def stats(self, *, is_stored: bool = False) -> Stats:
        """Return one consistent view of the queue.

        Args:
            is_stored: True to store the view for one lease, for the heartbeats of other workers.
        """
        ttl_ms = (self.limits.lease_ms,) if is_stored else ()
        return Stats.parse(await self.scripts.run("stats", *ttl_ms))

    # -- what workers call --------------------------------------------------------------------------

    async def register(
        self, worker: str, info: Mapping[str, str | int], policy: SchedulingPolicy | None = None
    ) -> int:
        """Open a worker's lease, store what it serves, and return Redis time in ms.

        Args:
            worker: A name that was never used before.
            info: Facts about the worker; `read_fleet` reads its models and endpoints from them.
            policy: Scheduling of the whole queue from now on; None leaves it as it is.
        """
        flat = [v for item in info.items() for v in item]
        order = (policy.order, int(policy.ageing_s * 1000)) if policy else ("", 0)
        now_ms: int = await self.scripts.run(
            "register", worker, self.limits.lease_ms, *order, *flat
        )
        return now_ms

    async def claim(
        self,
        worker: str,
        nonce: str,
        max_requests: int,
        terms: ClaimTerms = ANY_WORK,
    ) -> Claim:
        """Lease waiting requests to a worker.

        Args:
            worker: A registered worker.
            nonce: Unique name of this claim; a claim sent again with the same nonce returns the
                same.
            max_requests: Most requests to take, up to 128.
            terms: What else bounds the claim.

        Raises:
            LeaseLost: The worker holds no lease.
        """
        limits, suspects = self.limits, terms.suspects
        reply = await self.scripts.run(
            "claim", worker, nonce, max_requests, terms.max_tokens, suspects.max_new, int(suspects.holds_some),
            limits.max_depth, limits.max_bytes, limits.result_ttl_ms, terms.ms_per_token,
            ",".join(terms.understands), *("" if room is None else room for room in terms.lanes),
            terms.max_bytes, max_element_bytes(limits.max_request_bytes), ",".join(terms.avoid),
        )  # fmt: skip
        if reply[0] == b"LOST":
            raise LeaseLost(f"worker {worker} holds no lease on queue {self.keys.queue}", worker)
        return Claim.parse(reply[1:])

    async def has_waiting(self, lane: str) -> bool:
        """Return whether ids wait in a lane; those of the inbox and delayed ones are in no lane yet.

        It costs Redis a hundredth of a claim. An id whose request was cancelled may still count.
        """
        return bool(await self.redis.exists(self.keys.flows(lane)))

    async def admit(self, worker: str, token: str, request: Request) -> str:
        """Turn an inbox element into a request; return its code, or `gone` for a repeat."""
        return await self._admit(worker, token, "request", *request.submit_values())

    async def admit_garbage(
        self, worker: str, token: str, dead_id: str, evidence: Mapping[str, Any]
    ) -> str:
        """Turn an unreadable inbox element into a dead letter; one above 1 MiB keeps its beginning."""
        return await self._admit(worker, token, "garbage", dead_id, orjson.dumps(evidence))

    async def _admit(self, worker: str, token: str, *values: str | float | bytes) -> str:
        ttl_ms = self.limits.result_ttl_ms
        reply: bytes = await self.scripts.run("admit", worker, token, ttl_ms, *values)
        return reply.decode()

    async def ack(self, worker: str, settlements: Sequence[Settlement]) -> list[int]:
        """Write terminal records, at most 128 a call.

        Returns:
            A code for each: 1 stored; 2 stored late, by a worker that no longer held it; 0 nothing
                changed.
        """
        values = [value for settlement in settlements for value in settlement.ack_values()]
        values += summed_use(settlements)
        codes: list[int] = await self.scripts.run("ack", worker, self.limits.result_ttl_ms, *values)
        return codes

    async def nack(
        self, worker: str, claimed: Claimed, delay_ms: int, error: Mapping[str, Any]
    ) -> str:
        """Give back a request for a retry after `delay_ms`.

        Returns:
            retried, dead_lettered (its attempts are used up; the error is its evidence) or stale.
        """
        values = (claimed.id, claimed.fence, delay_ms, orjson.dumps(error))
        reply = await self.scripts.run("nack", worker, self.limits.result_ttl_ms, *values)
        return str(reply[0].decode())

    async def release(
        self, worker: str, claimed: Iterable[Claimed | Delivery], delay_ms: int = 0
    ) -> int:
        """Return requests to the front of their lanes; the attempts do not count.

        With a delay, no worker claims them before it is over.

        Returns:
            The number of released requests.
        """
        values: list[str | int] = [v for item in claimed for v in (item.id, item.fence)]
        if delay_ms:
            values.append(delay_ms)
        released: int = await self.scripts.run("release", worker, *values)
        return released

    async def in_flight(self, worker: str) -> list[Delivery]:
        """Return the requests that a worker holds by the queue's count."""
        held: Any = await self.redis.hgetall(self.keys.in_flight(worker))
        return [Delivery(request_id.decode(), int(number)) for request_id, number in held.items()]

    async def beat(self, worker: str, load: bytes = b"", upkeep_ms: int = 0) -> Beat:
        """Renew a worker's lease.

        Args:
            worker: A registered worker.
            load: What its engine does, as `WorkerLoad.dump` returns it; empty leaves what is known.
            upkeep_ms: Milliseconds between two turns of upkeep, of all workers together; 0 gives a turn to each beat.

        Raises:
            LeaseLost: The worker was reaped, and the queue gave its requests away.
        """
        reply = await self.scripts.run("beat", worker, self.limits.lease_ms, load, upkeep_ms)
        if reply[0] == 0:
            raise LeaseLost(f"worker {worker} was reaped from queue {self.keys.queue}", worker)
        _, now_ms, num_in_flight, has_turn, view, *ids = reply
        abort = [request_id.decode() for request_id in ids]
        return Beat(
            now_ms, num_in_flight, abort, bool(has_turn), Stats.parse(view) if view else None
        )

    async def crash(self, worker: str, evidence: Mapping[str, Any]) -> tuple[int, list[str]]:
        """Make the requests of a dead engine suspects; repeat the call until it moves nothing.

        Returns:
            The number of moved ids, and those of them that are dead letters now.
        """
        moved, *dead_ids = await self.scripts.run(
            "crash", worker, MOVED_A_CALL, self.limits.result_ttl_ms, orjson.dumps(evidence)
        )
        return moved, [request_id.decode() for request_id in dead_ids]

    async def deregister(self, worker: str) -> bool:
        """Close the lease of a worker that holds nothing; return False if it holds requests."""
        return bool(await self.scripts.run("deregister", worker))

    # -- upkeep, by any worker or waiting client ---------------------------------------------------

    async def reap(self) -> dict[str, int]:
        """Make the requests of dead workers claimable again; return worker -> number moved."""
        reply = await self.scripts.run("reap", MOVED_A_CALL, self.limits.result_ttl_ms)
        return {worker.decode(): moved for worker, moved in chunks(reply, 2)}

    async def expire(self) -> int:
        """End requests whose deadline has passed; return how many."""
        limits = self.limits
        expired: int = await self.scripts.run(
            "expire", MOVED_A_CALL, limits.result_ttl_ms, limits.dead_letter_ttl_ms
        )
        return expired

"""Format every Redis key, of a queue and of the directory. Only this Python module formats keys.

The table in `lua/includes/schema.lua` has those that the scripts of a queue touch. All keys of a queue carry the hash
tag `{queue}`, so they share one slot of a Redis Cluster and a script may touch any of them. The directory has a slot of
its own, so no script may touch both.
"""

import re
from dataclasses import dataclass

from gristmill.shared.errors import SettingsError

LANES = ("suspect", "high", "normal", "low")
"""Lanes in the order in which `claim` empties them: suspects, then the priorities."""

PENDING = "pending"
"""Kind of the LISTs in which ids wait, first come first served."""

ORDERED_KINDS = ("pending_sjf", "pending_deadline", "pending_prefix")
"""Kinds of the ZSETs in which ids wait by position."""

ALL_TENANTS = "*"
"""Flow of all tenants together, for scheduling orders that ignore tenants."""

QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Names that a queue may have. Braces would end its hash tag early, and `@` is the directory's."""

ALL_KEYS = "gm:{*}:*"
"""Pattern for SCAN that matches every key of every queue, and those of the directory."""

_PREFIX = re.compile(rf"gm:\{{({QUEUE_NAME.pattern})\}}:".encode())


def queue_of(key: bytes) -> str | None:
    """Return the name of the queue of a key, or None for a key of the directory or of other programs."""
    found = _PREFIX.match(key)
    return found[1].decode() if found else None


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one queue.

    Args:
        queue: Name of the queue: 1 to 64 letters, digits, `.`, `_` or `-`. A shard is a queue named
            `queue.shard`.

    Raises:
        SettingsError: The name has other characters or another length.
    """

    queue: str

    def __post_init__(self) -> None:
        if not QUEUE_NAME.fullmatch(self.queue):
            message = (
                f"queue name {self.queue!r} is not allowed; use 1 to 64 letters, digits, '.', '_' or '-'"
                " (GRISTMILL_QUEUE); only a worker takes several queues, name:weight,name:weight"
            )
            raise SettingsError(message)

    @property
    def prefix(self) -> str:
        """Beginning of every key; each script gets it as KEYS[1]."""
        return f"gm:{{{self.queue}}}:"

    def of_kind(self, kind: str, name: str) -> str:
        """Return the key with this first word and this rest; `parse` is the inverse."""
        return f"{self.prefix}{kind}:{name}" if name else f"{self.prefix}{kind}"

    def parse(self, key: bytes) -> tuple[str, str]:
        """Return the first word of a key of this queue, and the rest or ""."""
        kind, _, name = key.decode().removeprefix(self.prefix).partition(":")
        return kind, name

    @property
    def pattern(self) -> str:
        """Pattern for SCAN that matches every key of this queue."""
        return f"{self.prefix}*"

    @property
    def format(self) -> str:
        """STRING: version of the format in which this queue is written."""
        return f"{self.prefix}format"

    @property
    def scheduling(self) -> str:
        """HASH: the order in which claims take waiting requests."""
        return f"{self.prefix}scheduling"

    def waiting(self, lane: str, flow: str, kind: str = PENDING) -> str:
        """LIST or ZSET of the ids of one flow that wait in a lane; `kind` is PENDING or one of ORDERED_KINDS."""
        return f"{self.prefix}{kind}:{lane}:{flow}"

    @property
    def parked(self) -> str:
        """SET: reasons for which ids are parked."""
        return f"{self.prefix}parked"

    @property
    def parked_claimable(self) -> str:
        """SET: those of the reasons whose ids some worker may have."""
        return f"{self.prefix}parked_claimable"

    def parked_for(self, reason: str) -> str:
        """ZSET of ids that wait and may not be claimed for this reason -> enqueued_ms."""
        return f"{self.prefix}parked:{reason}"

    @property
    def pauses(self) -> str:
        """HASH: "queue" or "batch:<batch>" -> who paused it, when and why, JSON."""
        return f"{self.prefix}pauses"

    def flows(self, lane: str) -> str:
        """ZSET: flows with waiting ids -> virtual time."""
        return f"{self.prefix}flows:{lane}"

    @property
    def virtual_time(self) -> str:
        """HASH: lane -> virtual time of the last claim."""
        return f"{self.prefix}virtual_time"

    @property
    def times(self) -> str:
        """HASH: when workers last beat, and when claims last took from the lanes."""
        return f"{self.prefix}times"

    @property
    def tenant_weights(self) -> str:
        """HASH: tenant -> its share of the engine, 1 unless somebody set it."""
        return f"{self.prefix}tenant_weights"

    @property
    def inbox(self) -> str:
        """LIST of plain JSON that any language may RPUSH."""
        return f"{self.prefix}inbox"

    @property
    def inbox_suspects(self) -> str:
        """LIST of elements that a worker had not admitted when it died."""
        return f"{self.prefix}inbox_suspects"

    @property
    def view(self) -> str:
        """STRING with a TTL: the latest view of the queue, which heartbeats share."""
        return f"{self.prefix}view"

    @property
    def doorbell(self) -> str:
        """LIST of a few tokens that wake idle workers."""
        return f"{self.prefix}doorbell"

    @property
    def dead_letters(self) -> str:
        """ZSET of dead letters: id -> ms."""
        return f"{self.prefix}dead_letters"

    @property
    def dead_letter_info(self) -> str:
        """HASH of dead letters: id -> evidence line, then the record."""
        return f"{self.prefix}dead_letter_info"

    @property
    def owner(self) -> str:
        """HASH of in-flight ids -> worker, followed by the charge of its tenant."""
        return f"{self.prefix}owner"

    @property
    def stats(self) -> str:
        """HASH of counters."""
        return f"{self.prefix}stats"

    @property
    def pace(self) -> str:
        """HASH: the tokens that workers settled lately, and the time that they took."""
        return f"{self.prefix}pace"

    @property
    def workers(self) -> str:
        """ZSET of worker incarnations -> lease expiry in ms."""
        return f"{self.prefix}workers"

    @property
    def producers(self) -> str:
        """ZSET of producers that are still submitting -> lease expiry in ms."""
        return f"{self.prefix}producers"

    @property
    def delayed(self) -> str:
        """ZSET of ids -> ms at which they may be claimed."""
        return f"{self.prefix}delayed"

    @property
    def deadlines(self) -> str:
        """ZSET of ids -> ms at which they expire."""
        return f"{self.prefix}deadlines"

    @property
    def attempts(self) -> str:
        """HASH of ids tried before -> "deliveries|uncounted|crashes"."""
        return f"{self.prefix}attempts"

    @property
    def batches_done(self) -> str:
        """LIST of batches that completed, each once."""
        return f"{self.prefix}batches_done"

    def request(self, request_id: str) -> str:
        """STRING: the record of a request that is not terminal."""
        return f"{self.prefix}request:{request_id}"

    def result(self, request_id: str) -> str:
        """STRING with a TTL: the terminal record, JSON."""
        return f"{self.prefix}result:{request_id}"

    def finished(self, client: str) -> str:
        """LIST with a TTL: ids of this client that finished."""
        return f"{self.prefix}finished:{client}"

    def events(self, request_id: str) -> str:
        """STREAM with a TTL: the events of a request that streams."""
        return f"{self.prefix}events:{request_id}"

    def worker(self, worker: str) -> str:
        """HASH with a TTL: facts about what a worker serves."""
        return f"{self.prefix}worker:{worker}"

    def in_flight(self, worker: str) -> str:
        """HASH: id -> delivery number of what a worker holds."""
        return f"{self.prefix}in_flight:{worker}"

    def last_claim(self, worker: str) -> str:
        """STRING: nonce and ids of a worker's last claim."""
        return f"{self.prefix}last_claim:{worker}"

    def batch(self, batch: str) -> str:
        """HASH with a TTL: counters of a batch."""
        return f"{self.prefix}batch:{batch}"

    @property
    def tenant_load(self) -> str:
        """HASH: "tenant|requests" and "tenant|bytes" of what is not terminal."""
        return f"{self.prefix}tenant_load"

    def usage(self, day: int) -> str:
        """HASH with a TTL: what each tenant used of each model on a UTC day, counted from 1970-01-01."""
        return f"{self.prefix}usage:{day}"

    @property
    def wrong_types(self) -> str:
        """SET of the names of keys that had a wrong type and were moved away."""
        return f"{self.prefix}wrong_types"

    def wrong_type(self, name: str) -> str:
        """Any type, with a TTL: the value that the key of this name had."""
        return f"{self.prefix}wrong_type:{name}"

    def file(self, file_id: str) -> str:
        """STRING: the record of a stored file, JSON."""
        return f"{self.prefix}file:{file_id}"

    def files(self, tenant: str) -> str:
        """ZSET of a tenant's file ids, all scores 0: ids sort by their time."""
        return f"{self.prefix}files:{tenant}"

    def storage(self, tenant: str) -> str:
        """HASH: what the storage keeps for a tenant: a file or batch -> bytes, total -> their sum."""
        return f"{self.prefix}storage:{tenant}"

    def idempotency(self, tenant: str, key: str) -> str:
        """STRING with a TTL: digest and id of what the call with this Idempotency-Key created."""
        return f"{self.prefix}idempotency:{tenant}:{key}"

    @property
    def files_expiring(self) -> str:
        """ZSET of file ids -> second at which they are deleted."""
        return f"{self.prefix}files_expiring"

    def batch_record(self, batch: str) -> str:
        """HASH: a batch's record, checkpoint and notes; see `create.lua`."""
        return f"{self.prefix}batch_record:{batch}"

    def batch_parts(self, batch: str) -> str:
        """LIST of the written parts of a batch's output, JSON."""
        return f"{self.prefix}batch_parts:{batch}"

    def batch_lease(self, batch: str) -> str:
        """STRING with a TTL: the token of the steward that works on a batch."""
        return f"{self.prefix}batch_lease:{batch}"

    def batches(self, tenant: str) -> str:
        """ZSET of a tenant's batch ids, all scores 0: ids sort by their time."""
        return f"{self.prefix}batches:{tenant}"

    def batches_open(self, tenant: str) -> str:
        """SET of a tenant's batches that have not ended."""
        return f"{self.prefix}batches_open:{tenant}"

    def batches_due(self, work: str, tenant: str) -> str:
        """ZSET of a tenant's batches whose next step is this kind of work -> ms at which it is due."""
        return f"{self.prefix}batches_due:{work}:{tenant}"

    def steward_time(self, work: str) -> str:
        """ZSET of tenants that need this kind of work -> ms that stewards gave them."""
        return f"{self.prefix}steward_time:{work}"

    @property
    def steward_doorbell(self) -> str:
        """LIST of a few tokens that wake stewards."""
        return f"{self.prefix}steward_doorbell"


class DirectoryKeys:
    """The keys of the directory: what all queues of one Redis share. No queue can be named `@`."""

    prefix = "gm:{@}:"
    """Beginning of every key."""

    pattern = f"{prefix}*"
    """Pattern for SCAN that matches every key of the directory."""

    format = f"{prefix}format"
    """STRING: set once the tenants that earlier versions kept with their queues were moved here."""

    tenants = f"{prefix}tenants"
    """SET of the names of tenants."""

    api_keys = f"{prefix}api_keys"
    """HASH: digest of an API key -> tenant."""

    queues = f"{prefix}queues"
    """SET of the names of queues that a gateway or steward has served."""

    admins = f"{prefix}admins"
    """HASH: name of an admin key -> digest of the key and when it was made, JSON."""

    def admin_session(self, digest: str) -> str:
        """STRING with a TTL: the admin who signed in to the gateway's page, by the digest of the session's token."""
        return f"{self.prefix}admin_session:{digest}"

    def login_rate(self, address: str) -> str:
        """LIST with a TTL: when sign-ins from an address were tried, in ms of Redis' clock."""
        return f"{self.prefix}login_rate:{address}"

    def tenant(self, tenant: str) -> str:
        """STRING: a tenant's limits and webhook, JSON."""
        return f"{self.prefix}tenant:{tenant}"

    def rate(self, tenant: str) -> str:
        """LIST with a TTL: when a tenant's last calls of the gateways came, in ms of Redis' clock."""
        return f"{self.prefix}rate:{tenant}"

    def live(self, tenant: str) -> str:
        """ZSET with a TTL: "<queue>|<id>" of a tenant's live requests.

        Each has the moment in ms until which it counts though its request is not queued yet.
        """
        return f"{self.prefix}live:{tenant}"

    def request_queue(self, request_id: str) -> str:
        """STRING with a TTL: queue of a request whose caller chose the id, if its gateway serves several queues."""
        return f"{self.prefix}request_queue:{request_id}"

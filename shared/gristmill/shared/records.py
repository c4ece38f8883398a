"""Read a request as the queue stores it: `Record` and `Claimed`, for workers. No Redis here.

The bytes of a record are described in `docs/protocol.md`; `lua/includes/records.lua` reads the header.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NUM_FIELDS = 15
"""Fixed fields of a header; facts follow (`facts.py`)."""

REQUIRED = "!"
"""First character of the name of a fact that a worker must understand."""

MAX_COST = 2**24
"""Most tokens that one request counts as, so that no counter overflows (`lua/includes/records.lua`)."""


def cost_of(record: bytes) -> int:
    """Return the estimated tokens of a record as the scripts count them: 1 to `MAX_COST`.

    Args:
        record: At least the header of a record; an unreadable one counts as 1.
    """
    fields = record.partition(b"\n")[0].split(b"|")
    try:
        tokens = int(fields[7]) + int(fields[8])
    except (IndexError, ValueError):
        return 1
    return max(1, min(tokens, MAX_COST))


def tenant_of(record: bytes) -> str | None:
    """Return the tenant of a record, or None if it is no record of version 1.

    Args:
        record: At least the header of a record.
    """
    fields = record.partition(b"\n")[0].split(b"|")
    is_record = len(fields) >= NUM_FIELDS and fields[0] == b"1"
    return fields[3].decode(errors="replace") if is_record else None


@dataclass(frozen=True, slots=True)
class Claimed:
    """One request as a claim returned it.

    Attributes:
        id: The request's id.
        delivery: Number of this claim of the request, from 1.
        attempt: Number of the attempt, from 1; releases and crashes do not count.
        crashes: Engine deaths during this request; above 0 it is a suspect.
        record: The stored request.
    """

    id: str
    delivery: int
    attempt: int
    crashes: int
    record: "Record"

    @property
    def fence(self) -> str:
        """What a settling call gives to show that it means this claim of this very request.

        A later request of the same id has the same delivery numbers, but came at another moment or has another body.
        """
        return f"{self.delivery}@{self.record.enqueued_ms}@{self.record.digest}"


@dataclass(frozen=True, slots=True)
class Record:
    """The stored form of a request, read back.

    `facts` has names that begin with `!` if a worker must understand them.
    """

    enqueued_ms: int
    deadline_ms: int
    tenant: str
    priority: str
    digest: str
    batch: str
    prompt_tokens: int
    max_tokens: int
    max_attempts: int
    endpoint: str
    model: str
    origin: str
    facts: Mapping[str, str]
    metadata: bytes
    body: bytes

    @classmethod
    def parse(cls, data: bytes) -> "Record":
        """Read the three parts of `request:<id>`.

        Raises:
            ValueError: The bytes are not a record of version 1.
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
            priority=fields[4],
            digest=fields[5],
            batch=fields[6],
            prompt_tokens=int(fields[7]),
            max_tokens=int(fields[8]),
            max_attempts=int(fields[9]),
            endpoint=fields[11],
            model=fields[12],
            origin=fields[14],
            facts=read_facts(fields[NUM_FIELDS:]),
            metadata=metadata,
            body=body,
        )


def read_facts(fields: Iterable[str]) -> dict[str, str]:
    """Return the facts of a header from its fields after the fixed ones; what has no `=` is left out."""
    pairs = (field.partition("=") for field in fields)
    return {name: value for name, sign, value in pairs if sign}


def required_names(fields: Iterable[str]) -> list[str]:
    """Return the names that a worker must understand, without the `!`, in the order of the header."""
    pairs = (field.partition("=") for field in fields)
    return [
        name.removeprefix(REQUIRED) for name, sign, _ in pairs if sign and name.startswith(REQUIRED)
    ]

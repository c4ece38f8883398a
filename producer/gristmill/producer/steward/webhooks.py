"""Telling a tenant's server how a batch ended: OpenAI's event, signed as Standard Webhooks says.

https://platform.openai.com/docs/api-reference/webhook-events, https://www.standardwebhooks.com
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

import aiohttp
import orjson
from standardwebhooks import Webhook
from yarl import URL

from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.steward.addresses import public_socket
from gristmill.shared.errors import GristmillError

GONE = 410
"""The receiver wants no more of it (Standard Webhooks)."""


class NotDelivered(GristmillError):
    """The receiver did not take the event; it may the next time."""


class NotWanted(GristmillError):
    """The receiver will never take the event."""


@dataclass(frozen=True, slots=True)
class Event:
    """How a batch ended.

    Attributes:
        id: The same whenever the same end is told, so the receiver can leave out repeats.
        type: `batch.` and the status.
        created_at: When it ended, seconds since 1970.
        batch: Its id.
    """

    id: str
    type: str
    created_at: int
    batch: str

    @classmethod
    def of(cls, record: BatchRecord) -> Self:
        """Return the event of a batch that has ended."""
        ended_at: int | None = getattr(record, f"{record.status}_at")
        name = f"evt_{record.id.removeprefix('batch_')}_{record.status}"
        return cls(name, f"batch.{record.status}", ended_at or record.created_at, record.id)

    @property
    def body(self) -> bytes:
        """The event in OpenAI's form."""
        return orjson.dumps(
            {
                "id": self.id, "object": "event", "type": self.type, "created_at": self.created_at,
                "data": {"id": self.batch},
            }
        )  # fmt: skip

    def headers(self, secret: str) -> dict[str, str]:
        """Return the signature and what it covers; good for the receiver's few minutes from now."""
        now = datetime.now(UTC)
        return {
            "content-type": "application/json",
            "webhook-id": self.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(secret).sign(self.id, now, self.body.decode()),
        }


@dataclass(frozen=True, slots=True)
class Webhooks:
    """Sends events.

    Attributes:
        timeout_s: For the whole exchange.
        allowed_hosts: Hosts, in lower case, whose addresses may be private.
    """

    timeout_s: float
    allowed_hosts: frozenset[str] = frozenset()

    async def send(self, url: str, secret: str, event: Event) -> None:
        """Deliver an event; the answer's body is not read.

        Raises:
            NotDelivered: No answer, no 2xx, or no public address; nothing of the URL but its host is told.
            NotWanted: The receiver said 410, or the URL or the secret is none.
        """
        target, headers = _checked(url), _signed(event, secret)
        try:
            status = await self._post(target, headers, event.body)
        except (aiohttp.ClientError, OSError) as error:
            raise NotDelivered(f"{target.host}: {_reason(error)}") from None
        if status == GONE:
            raise NotWanted(f"{target.host} answered 410 Gone")
        if not 200 <= status < 300:
            raise NotDelivered(f"{target.host} answered {status}")

    async def _post(self, target: URL, headers: dict[str, str], body: bytes) -> int:
        guard = None if target.host in self.allowed_hosts else public_socket
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(socket_factory=guard, force_close=True),
                timeout=aiohttp.ClientTimeout(total=self.timeout_s),
                auto_decompress=False,
                trust_env=False,
            ) as session,
            session.post(target, data=body, headers=headers, allow_redirects=False) as answer,
        ):
            return answer.status


def _checked(url: str) -> URL:
    try:
        target = URL(url)
    except ValueError:
        raise NotWanted("the webhook's URL cannot be read") from None
    if target.scheme not in ("http", "https") or not target.host:
        raise NotWanted("the webhook's URL is not one of http or https")
    return target


def _signed(event: Event, secret: str) -> dict[str, str]:
    try:
        return event.headers(secret)
    except Exception:  # noqa: BLE001  # of several libraries, and their words may quote the secret
        raise NotWanted(
            "the webhook's secret is not one of Standard Webhooks (whsec_...)"
        ) from None


def _reason(error: Exception) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return (
        f"{type(cause).__name__}: {cause}" if isinstance(cause, OSError) else type(error).__name__
    )

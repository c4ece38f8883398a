"""Webhooks: an event for the tenant's server when a batch has ended.

The event has OpenAI's form (https://platform.openai.com/docs/api-reference/webhook-events). Its
signature follows Standard Webhooks (https://www.standardwebhooks.com).
"""

import ipaddress
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import aiohttp
import orjson
from standardwebhooks import Webhook
from yarl import URL

from gristmill.producer.batches.objects import BatchRecord
from gristmill.shared.addresses import is_public
from gristmill.shared.errors import GristmillError

GONE = 410
"""HTTP status with which a receiver refuses all further events (Standard Webhooks)."""


class NotDelivered(GristmillError):
    """The receiver did not accept the event; a later try may succeed."""


class NotWanted(GristmillError):
    """The receiver will never accept the event."""


class PrivateAddress(OSError):
    """A webhook's host has an address outside the public network."""


@dataclass(frozen=True, slots=True)
class Event:
    """The end of a batch.

    Attributes:
        id: Id of the event; equal in every delivery of the same end, so that the receiver can skip
            repeats.
        type: `batch.` and the status.
        created_at: Time of the end, in seconds since 1970.
        batch: Id of the batch.
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
        """Return the headers with the signature. Receivers accept it for a few minutes."""
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
        timeout_s: Longest time of one delivery.
        allowed_hosts: Hosts, in lower case, whose addresses may be private.
    """

    timeout_s: float
    allowed_hosts: frozenset[str] = frozenset()

    async def send(self, url: str, secret: str, event: Event) -> None:
        """Deliver an event. The body of the answer is not read.

        Raises:
            NotDelivered: No answer, no 2xx, or no public address. The message names only the URL's
                host.
            NotWanted: The receiver answered 410, or the URL or the secret is invalid.
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


def public_socket(found: tuple[Any, ...]) -> socket.socket:
    """Make a socket for an address, if it is public; aiohttp calls this as its `socket_factory`.

    This checks the very address that aiohttp connects to. So neither a name that changes its
    address (DNS rebinding) nor an address in the URL avoids the check.

    Raises:
        PrivateAddress: The address is not public.
    """
    family, kind, protocol, _, place = found
    if not is_public(ipaddress.ip_address(str(place[0]).partition("%")[0])):
        raise PrivateAddress(
            f"{place[0]} is not a public address; name the host in GRISTMILL_WEBHOOK_ALLOWED_HOSTS to allow it"
        )
    return socket.socket(family, kind, protocol)


def _checked(url: str) -> URL:
    try:
        target = URL(url)
    except ValueError:
        raise NotWanted("the webhook's URL cannot be read") from None
    if target.scheme not in ("http", "https") or not target.host:
        raise NotWanted("the webhook's URL needs http or https, and a host")
    return target


def _signed(event: Event, secret: str) -> dict[str, str]:
    try:
        return event.headers(secret)
    except Exception:  # noqa: BLE001  # of several libraries; their messages may quote the secret
        raise NotWanted(
            "the webhook's secret is not a Standard Webhooks secret (whsec_...)"
        ) from None


def _reason(error: Exception) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return (
        f"{type(cause).__name__}: {cause}" if isinstance(cause, OSError) else type(error).__name__
    )

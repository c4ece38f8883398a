"""Which addresses a webhook may reach: public ones, checked on the very address that is connected to.

The check sits where the socket is made, behind every name and redirect, so an address in the URL and a
name that changes what it resolves to (DNS rebinding) meet it alike.
"""

import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address
from typing import Any

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class PrivateAddress(OSError):
    """A webhook would reach a network that is not the public one."""


def is_public(text: str) -> bool:
    """Whether an address is one of the public Internet, also as the IPv4 address that it carries."""
    address = ipaddress.ip_address(text)
    carried = _carried(address) if isinstance(address, IPv6Address) else None
    return all(a.is_global and not a.is_multicast for a in (carried or address,))


def _carried(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address inside a mapped, translated (RFC 6052), 6to4 or Teredo one."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


def public_socket(found: tuple[Any, ...]) -> socket.socket:
    """Make a socket for an address; aiohttp's `socket_factory`.

    Raises:
        PrivateAddress: It is not public.
    """
    family, kind, protocol, _, place = found
    if not is_public(str(place[0])):
        raise PrivateAddress(
            f"{place[0]} is not a public address; name the host in GRISTMILL_WEBHOOK_ALLOWED_HOSTS to allow it"
        )
    return socket.socket(family, kind, protocol)

"""Which addresses a webhook may reach: public ones, checked on the very address that is connected to.

The check sits where the socket is made, behind every name and redirect, so an address in the URL and a
name that changes what it resolves to (DNS rebinding) meet it alike.
"""

import ipaddress
import socket
from typing import Any

from gristmill.shared.addresses import is_public


class PrivateAddress(OSError):
    """A webhook would reach a network that is not the public one."""


def public_socket(found: tuple[Any, ...]) -> socket.socket:
    """Make a socket for an address; aiohttp's `socket_factory`.

    Raises:
        PrivateAddress: It is not public.
    """
    family, kind, protocol, _, place = found
    if not is_public(ipaddress.ip_address(str(place[0]).partition("%")[0])):
        raise PrivateAddress(
            f"{place[0]} is not a public address; name the host in GRISTMILL_WEBHOOK_ALLOWED_HOSTS to allow it"
        )
    return socket.socket(family, kind, protocol)

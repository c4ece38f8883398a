"""Find out which addresses are public: strangers' media and webhooks may use only these."""

import ipaddress
from ipaddress import IPv4Address, IPv6Address

IPAddress = IPv4Address | IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: IPAddress) -> bool:
    """Return whether an address belongs to the public network.

    An IPv6 address that embeds an IPv4 address counts as that IPv4 address.

    Loopback, private, link-local, carrier-grade NAT, reserved and multicast addresses are not
    (https://www.iana.org/assignments/iana-ipv4-special-registry).
    """
    carried = _carried(address) if isinstance(address, IPv6Address) else None
    if carried is not None:
        return is_public(carried)
    return address.is_global and not address.is_multicast


def _carried(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address inside a mapped, translated (RFC 6052), 6to4 or Teredo one."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)

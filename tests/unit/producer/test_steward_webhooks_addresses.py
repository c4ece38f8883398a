"""The addresses that a webhook may reach."""

import ipaddress
import socket

import pytest

from gristmill.producer.steward.webhooks import PrivateAddress, public_socket
from gristmill.shared.addresses import is_public


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",  # noqa: S104
        "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
        "::1", "::", "fe80::1", "fe80::1%1", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::",
        "2002:a9fe:a9fe::1", "2001:0:0:0:0:0:80ff:fffe",
    ],
)  # fmt: skip
def test_what_is_not_the_public_internet_is_refused(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with pytest.raises(PrivateAddress, match="GRISTMILL_WEBHOOK_ALLOWED_HOSTS"):
        public_socket((family, socket.SOCK_STREAM, 0, "", (address, 80)))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_pass(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    public_socket((family, socket.SOCK_STREAM, 0, "", (address, 80))).close()

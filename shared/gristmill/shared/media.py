"""Check the media URLs of a request, so that no server reads its private network for a stranger.

The gateway and the steward take requests from outside. They call `check_media` before they queue
them. It refuses the targets of an attacker: files, loopback, private networks, cloud metadata. This
module looks up each name, and the engine looks it up again when it fetches. The address may change
in between (DNS rebinding). So the worker has a second rule that needs no look-up: vLLM fetches from
allowed domains only.
"""

import ipaddress
import re
import socket
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import orjson

from gristmill.shared.addresses import IPAddress, is_public
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import Request

NO_DOMAIN = "none.invalid"
"""A name that never resolves (RFC 6761). It stands for no domain, because vLLM reads an empty list
of allowed domains as all domains."""

MAX_HOSTS = 32
"""Most hosts that one request may name; each costs a look-up."""

LOOKUP_TTL_S = 30
"""Seconds for which an answer of the DNS is reused."""

MAX_HOST_CHARS = 253
"""Most characters of a host, as in the DNS (RFC 1035); the answers of the DNS are kept under it."""

MAX_SHOWN = 120

_URL_FIELDS = ("image_url", "audio_url", "video_url", "file_url")
_URL = re.compile(
    r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:[/?#].*)?", re.I
)
_LIKE_IPV4 = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)")


def check_media(request: Request, allowed: frozenset[str], *, look_up: bool = True) -> None:
    """Refuse a request with a media URL that it must not make the engine fetch.

    Args:
        request: Request with a body as `Request.from_body` writes it. A body without a URL costs
            one search of its bytes. A body with a URL is parsed and may wait for the DNS, so call
            this in a thread.
        look_up: True asks the DNS for the addresses of names. False checks only addresses and
            `localhost`, recognised by their spelling, and waits for nothing.
        allowed: Hosts, in lower case, that need no check (`GRISTMILL_ALLOWED_MEDIA_DOMAINS`).

    Raises:
        InvalidRequest: A URL is not allowed; the message has the URL, the reason and the remedy.
    """
    if not names_media(request):
        return
    hosts = {host_of(url, request.id): url for url in media_urls(orjson.loads(request.body))}
    hosts = {host: url for host, url in hosts.items() if host and host not in allowed}
    if len(hosts) > MAX_HOSTS:
        raise InvalidRequest(
            f"it names media on {len(hosts)} hosts; the limit is {MAX_HOSTS}; split it",
            request_id=request.id,
        )
    for host, url in hosts.items():
        if look_up or _is_told_by_spelling(host):
            _check_host(host, url, request.id)


def names_media(request: Request) -> bool:
    """Return whether a request may name a URL; without one, `check_media` never waits."""
    return b'url"' in request.body  # the name of every field with a URL ends in this


def media_urls(body: Any) -> Iterator[str]:
    """Yield the URL of each image, sound, video and file in a body of OpenAI's or Anthropic's form."""
    left = [body]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left.extend(node)
        elif isinstance(node, dict):
            left.extend(node.values())
            yield from _urls_of_part(node)


def _urls_of_part(part: dict[str, Any]) -> Iterator[str]:
    for name in _URL_FIELDS:
        value = part.get(name)
        url = value.get("url") if isinstance(value, dict) else value
        if isinstance(url, str):
            yield url
    if part.get("type") == "url" and isinstance(part.get("url"), str):  # Anthropic's source
        yield part["url"]


def host_of(url: str, request_id: str) -> str:
    """Return the host of a URL in lower case, "" for a data: URL.

    Only one form is accepted, without user, spaces or backslashes. Two parsers may read other forms
    differently, so the host checked here might not be the host that the engine fetches from.

    Raises:
        InvalidRequest: The URL has another scheme or another form, or a host over `MAX_HOST_CHARS`.
    """
    if url[:5].lower() == "data:":
        return ""
    found = _URL.fullmatch(url)
    if not found:
        raise InvalidRequest(
            f"media URL {_shown(url)} is not allowed; use http://host/path or https://host/path without"
            " user or password, percent-encoded, or a data: URL",
            request_id=request_id,
        )
    host = found[1].lower().removesuffix(".")
    if len(host) > MAX_HOST_CHARS:
        raise InvalidRequest(
            f"media URL {_shown(url)} has a host of {len(host):,} characters; the limit is {MAX_HOST_CHARS}; correct it",
            request_id=request_id,
        )
    return host


def _is_told_by_spelling(host: str) -> bool:
    is_address = host.startswith("[") or _LIKE_IPV4.fullmatch(host) is not None
    return is_address or host == "localhost" or host.endswith(".localhost")


def _check_host(host: str, url: str, request_id: str) -> None:
    addresses = _addresses(host, int(time.monotonic() // LOOKUP_TTL_S))
    if addresses and all(is_public(address) for address in addresses):
        return
    reason = "is on a private or reserved network" if addresses else "has no address"
    raise InvalidRequest(
        f"media URL {_shown(url)}: its host {_shown(host)} {reason}; use a public host, send the data itself"
        " as a data: URL, or ask the operator to add the host to GRISTMILL_ALLOWED_MEDIA_DOMAINS",
        request_id=request_id,
    )


@lru_cache(maxsize=1024)
def _addresses(host: str, _period: int) -> tuple[IPAddress, ...]:
    """Return the addresses of a host; empty for an unknown name or an unusual spelling.

    `_period` changes every `LOOKUP_TTL_S` seconds, so the cache forgets old answers.
    """
    if host.startswith("["):
        return _literal(ipaddress.IPv6Address, host.strip("[]"))
    if _LIKE_IPV4.fullmatch(host):
        return _literal(ipaddress.IPv4Address, host)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple({ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found})


def _literal(kind: Callable[[str], IPAddress], text: str) -> tuple[IPAddress, ...]:
    """Read an address in its usual spelling; return () for 127.1, 0x7f000001 or 2130706433."""
    try:
        return (kind(text),)
    except ValueError:
        return ()


def _shown(text: str) -> str:
    shown = repr(text)
    return (
        shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}... ({len(text):,} characters)"
    )

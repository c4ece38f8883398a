"""Read `REDIS_URL`: one form for each way to run Redis. `connect` makes a client from it.

A URL holds secrets, so an error here never quotes it, not even a part that looks harmless. A `/` or
`?` in a password without percent-encoding makes a piece of it look like a port, a path or an
option.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

from gristmill.shared.errors import SettingsError

Kind = Literal["server", "socket", "sentinel", "cluster"]
Node = tuple[str, int]

_KINDS: Mapping[str, tuple[Kind, bool]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "unix": ("socket", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_FORMS: Mapping[Kind, str] = {
    "server": "redis[s]://[user:password@]host[:6379][/db]",
    "socket": "unix://[user:password@]/path[?db=db]",
    "sentinel": "redis[s]+sentinel://[user:password@]host[:26379][,host...]/service[/db]",
    "cluster": "redis[s]+cluster://[user:password@]host[:6379][,host...]",
}
_OTHER_SCHEMES = {
    *(f"{name}{tls}" for name in ("amqp", "http", "valkey", "redis") for tls in ("", "s")),
    "file", "memcached", "mongodb", "mysql", "nats", "postgres", "postgresql", "redis+socket",
    "redis+srv", "redis+unix", "redis-cluster", "redis-sentinel", "sentinel", "tcp", "valkey+cluster",
}  # fmt: skip
"""Schemes that people write by mistake; an error may name these."""

_TEXT_OPTIONS = ("username", "password")
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS_OPTIONS = (*_TLS_FILES, "ssl_ca_data", "ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers")
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NODE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_SERVICE = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """The parts of a parsed URL.

    Attributes:
        kind: Kind of Redis: server, socket, sentinel or cluster.
        public: The URL without user, password and options, for messages and logs.
        nodes: Addresses to connect to: the server, the sentinels, or some nodes of the cluster.
        path: Path of the Unix socket.
        service: Name of the primary at the sentinels.
        db: Number of the database.
        login: `username` and `password` for Redis, if given.
        sentinel_login: `username` and `password` for the sentinels, if given.
        tls: redis-py's `ssl_*` options; None without TLS.
    """

    kind: Kind
    public: str
    nodes: Sequence[Node] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    sentinel_login: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Mapping[str, Any] | None = None

    @property
    def tls_files(self) -> Mapping[str, str]:
        """The files that the TLS options name."""
        return {name: path for name, path in (self.tls or {}).items() if name in _TLS_FILES}


def parse(url: str) -> RedisUrl:
    """Read a URL, without connecting and without opening a file.

    Raises:
        SettingsError: The URL has none of the forms. The message names them and quotes nothing of
            the URL.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _KINDS:
        raise SettingsError(
            f"REDIS_URL has {_named(scheme, separator)}; write {' or '.join(_FORMS.values())}"
        )
    kind, is_tls = _KINDS[scheme]
    try:
        return _read(scheme, kind, is_tls, rest)
    except ValueError:  # its text may quote a part of the password
        raise SettingsError(
            f"REDIS_URL cannot be read; write {_FORMS[kind]}, percent-encode what is special in user and"
            f" password, and give no other options than {', '.join(_options_of(kind, is_tls))}"
        ) from None


def _named(scheme: str, separator: str) -> str:
    """Return what the scheme is, in words; what is no known scheme may be a part of a password."""
    if not separator:
        return "no scheme"
    return f"the scheme {scheme}" if scheme.lower() in _OTHER_SCHEMES else "an unknown scheme"


def redacted(url: str) -> str:
    """Return a URL without user, password and options, for messages and logs."""
    try:
        return parse(url).public
    except SettingsError:
        return "<unreadable URL>"


def _options_of(kind: Kind, is_tls: bool) -> Sequence[str]:
    db = () if kind == "cluster" else ("db",)
    sentinel = _SENTINEL_OPTIONS if kind == "sentinel" else ()
    return (*db, *_TEXT_OPTIONS, *sentinel, *(_TLS_OPTIONS if is_tls else ()))


def _read(scheme: str, kind: Kind, is_tls: bool, rest: str) -> RedisUrl:
    location, _, query = rest.partition("?")
    authority, _, path = location.partition("/")
    user_info, _, hosts = authority.rpartition("@")
    options = dict(parse_qsl(query, strict_parsing=True)) if query else {}
    if not options.keys() <= set(_options_of(kind, is_tls)):
        raise ValueError("option")
    service, db = _service_and_db(kind, path)
    return RedisUrl(
        kind=kind,
        public=f"{scheme}://{hosts}{'/' if path else ''}{path}",
        nodes=_nodes(kind, hosts),
        path=f"/{unquote(path)}" if kind == "socket" else "",
        service=service,
        db=int(options.get("db", db)),
        login=_login(options, "") | _user_and_password(user_info),
        sentinel_login=_login(options, "sentinel_"),
        tls=_tls(options) if is_tls else None,
    )


def _nodes(kind: Kind, hosts: str) -> Sequence[Node]:
    if kind == "socket":
        if hosts:
            raise ValueError("host before a path")
        return ()
    default_port = 26379 if kind == "sentinel" else 6379
    nodes = [_node(text, default_port) for text in (hosts or "localhost").split(",")]
    if kind == "server" and len(nodes) > 1:
        raise ValueError("several hosts")
    return nodes


def _node(text: str, default_port: int) -> Node:
    found = _NODE.fullmatch(text)
    port = int((found and found[2]) or default_port)
    if not found or not 0 < port < 65536:
        raise ValueError("node")
    return found[1].strip("[]"), port


def _service_and_db(kind: Kind, path: str) -> tuple[str, str]:
    """Split the path behind the hosts into service and database."""
    if kind == "socket":
        if not path:
            raise ValueError("path")
        return "", "0"
    service, _, db = path.partition("/") if kind == "sentinel" else ("", "", path)
    is_service = bool(_SERVICE.fullmatch(service)) == (kind == "sentinel")
    if not is_service or (kind == "cluster" and db not in {"", "0"}):
        raise ValueError("path")
    return service, db or "0"


def _user_and_password(user_info: str) -> dict[str, str]:
    user, _, password = user_info.partition(":")
    login = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in login.items() if value}


def _login(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name: options[prefix + name] for name in _TEXT_OPTIONS if prefix + name in options}


def _tls(options: Mapping[str, str]) -> dict[str, Any]:
    tls: dict[str, Any] = {name: options[name] for name in _TLS_OPTIONS if name in options}
    if "ssl_check_hostname" in tls:
        text = tls["ssl_check_hostname"].lower()
        if text not in _BOOLEANS:
            raise ValueError("boolean")
        tls["ssl_check_hostname"] = _BOOLEANS[text]
    if tls.get("ssl_cert_reqs", "required") not in {"none", "optional", "required"}:
        raise ValueError("ssl_cert_reqs")
    return tls

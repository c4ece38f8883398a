import pytest

from gristmill.shared.connection import connect
from gristmill.shared.errors import SettingsError
from gristmill.shared.redis_url import parse, redacted

SCHEMES = (
    "redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
)  # fmt: skip


@pytest.mark.parametrize(
    ("url", "nodes", "place"),
    [
        ("redis://h:1/2", [("h", 1)], ("", "", 2)),
        ("redis://", [("localhost", 6379)], ("", "", 0)),
        ("redis://h?db=3", [("h", 6379)], ("", "", 3)),
        ("rediss://[::1]:6380", [("::1", 6380)], ("", "", 0)),
        ("unix:///tmp/a%20b?db=1", (), ("/tmp/a b", "", 1)),  # noqa: S108
        ("redis+sentinel://a,b:7/main", [("a", 26379), ("b", 7)], ("", "main", 0)),
        ("rediss+sentinel://[::1]:5,b/main/4", [("::1", 5), ("b", 26379)], ("", "main", 4)),
        ("redis+cluster://a,b:7", [("a", 6379), ("b", 7)], ("", "", 0)),
        ("rediss+cluster://a/0", [("a", 6379)], ("", "", 0)),
    ],
)
def test_every_form_is_understood(
    url: str, nodes: list[tuple[str, int]], place: tuple[str, str, int]
) -> None:
    target = parse(url)
    assert list(target.nodes) == list(nodes)
    assert (target.path, target.service, target.db) == place


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("redis://h", {}),
        ("redis://:p%40%2F%3F@h", {"password": "p@/?"}),
        ("redis://u:a@b:c@h", {"username": "u", "password": "a@b:c"}),
        ("unix://u:p@/s", {"username": "u", "password": "p"}),
        ("redis+cluster://h?username=u&password=p%26", {"username": "u", "password": "p&"}),
    ],
)
def test_user_and_password_are_found(url: str, login: dict[str, str]) -> None:
    assert parse(url).login == login


def test_sentinels_have_a_user_of_their_own() -> None:
    target = parse("redis+sentinel://u:p@h/main?sentinel_username=su&sentinel_password=sp")
    assert target.login == {"username": "u", "password": "p"}
    assert target.sentinel_login == {"username": "su", "password": "sp"}


def test_tls_options_are_redis_pys() -> None:
    assert parse("redis://h").tls is None
    target = parse("rediss+cluster://h?ssl_ca_certs=/ca&ssl_check_hostname=no&ssl_cert_reqs=none")
    assert target.tls == {
        "ssl_ca_certs": "/ca", "ssl_check_hostname": False, "ssl_cert_reqs": "none",
    }  # fmt: skip


@pytest.mark.parametrize(
    "url", ["http://h", "localhost:6379", "", "amqp://u:s3cr3t@h", "s3cr3t://"]
)
def test_other_schemes_are_refused_and_the_forms_named(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(url)
    assert "s3cr3t" not in str(caught.value)
    for scheme in ("redis[s]://", "unix://", "redis[s]+sentinel://", "redis[s]+cluster://"):
        assert scheme in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://h", "REDIS_URL has the scheme http; write redis"),
        ("Redis://h", "REDIS_URL has the scheme Redis; write redis"),
        ("valkey://u:p@h", "REDIS_URL has the scheme valkey; write"),
        ("localhost:6379", "REDIS_URL has no scheme; write"),
        ("", "REDIS_URL has no scheme; write"),
        ("secret://h", "REDIS_URL has an unknown scheme; write"),
        ("u:pass://word@h", "REDIS_URL has an unknown scheme; write"),
    ],
)
def test_the_error_says_which_scheme_it_is_unless_it_may_be_a_secret(url: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(url)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "rest",
    [
        "u:s3/cr3t@h/main", "u:s3?cr3t@h/main", "u:s3?cr3=t@h/main", ":s3cr3t", ":12345/s3cr3t@h",
        ":12345?s3cr3t=1@h", "[s3cr3t", "h:99999/s3cr3t", "h/main?password=s3cr3t&other=1",
        "h/main?s3cr3t=1", "h/main?ssl_check_hostname=s3cr3t", "h/main?db=s3cr3t", "h,,s3cr3t",
        "h s3cr3t/main", "h/main?decode_responses=True&password=s3cr3t",
    ],
)  # fmt: skip
def test_url_that_cannot_be_read_is_refused_without_its_secrets(scheme: str, rest: str) -> None:
    with pytest.raises(SettingsError, match="cannot be read; write") as caught:
        parse(f"{scheme}://{rest}")
    told = str(caught.value) + redacted(f"{scheme}://{rest}")
    assert "cr3" not in told
    assert "12345" not in told
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "url",
    [
        "redis://a,b", "redis://h/name", "unix://", "unix://host/path", "redis+sentinel://h",
        "redis+sentinel://h/", "redis+sentinel://h/a/b/c", "redis+cluster://h/1",
        "redis+cluster://h?db=1", "redis://h?ssl_ca_certs=/ca", "redis://h?sentinel_password=p",
        "redis://h?socket_timeout=1",
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="cannot be read; write"):
        parse(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:p@h:1/2", "redis://h:1/2"),
        ("redis://h", "redis://h"),
        ("redis://u:p@ss@h", "redis://h"),
        ("redis://h/0?password=p", "redis://h/0"),
        ("redis://[x", "<unreadable URL>"),
        ("unix://:p@/tmp/s?db=1", "unix:///tmp/s"),
        ("redis+sentinel://u:p@a,b:7/main/1?sentinel_password=p", "redis+sentinel://a,b:7/main/1"),
        ("rediss+cluster://u:p@a,b?ssl_ca_certs=/p", "rediss+cluster://a,b"),
    ],
)
def test_redacted_url_has_no_secret(url: str, shown: str) -> None:
    assert redacted(url) == shown
    assert "password" not in repr(parse("redis://u:password@h?username=u"))


def test_file_that_is_not_there_is_named_before_anything_connects() -> None:
    with pytest.raises(SettingsError, match="ssl_ca_certs names is not there: /nowhere/ca"):
        connect("rediss://:s3cr3t@h?ssl_ca_certs=/nowhere/ca")

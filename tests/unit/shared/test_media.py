"""The media guard: what an attacker would name is refused, what people use is not."""

import base64
from typing import Any

import orjson
import pytest

from gristmill.shared.errors import InvalidRequest
from gristmill.shared.media import check_media, host_of, media_urls
from gristmill.shared.request import Request

NONE: frozenset[str] = frozenset()


def naming(url: Any) -> Request:
    part = {"type": "image_url", "image_url": {"url": url}}
    return Request.from_body({"messages": [{"role": "user", "content": [part]}]})


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "file:/etc/passwd", "FILE:///etc/passwd", "ftp://example.com/a", "gopher://127.0.0.1",
        "//127.0.0.1/a", "cat.png", "", "http:127.0.0.1/a", "http:///127.0.0.1/a", "jar:http://example.com!/",
        "http://localhost/a", "http://LOCALHOST/a", "http://localhost./a", "http://127.0.0.1:8000/a",
        "http://127.1/a", "http://2130706433/a", "http://0x7f000001/a", "http://0177.0.0.1/a", "http://127.0.0.1./a",
        "http://0/a", "http://0.0.0.0/a", "http://10.0.0.1/a", "http://172.16.9.9/a", "http://192.168.1.1/a",
        "http://169.254.169.254/latest/meta-data", "http://100.64.0.1/a", "http://224.0.0.1/a", "http://255.255.255.255/",
        "http://[::1]/a", "http://[::]/a", "http://[fe80::1]/a", "http://[fc00::1]/a", "http://[::ffff:127.0.0.1]/a",
        "http://[::ffff:7f00:1]/a", "http://[64:ff9b::7f00:1]/a", "http://[2002:7f00:1::]/a", "http://[fe80::1%25eth0]/a",
        "http://8.8.8.8@127.0.0.1/a", "http://user:password@8.8.8.8/a", "http://127.0.0.1\\@8.8.8.8/a",
        "http://8.8.8.8\\.localhost/", " http://8.8.8.8/a", "http://8.8.8.8\n/a", "http://8.8.8.8\t/", "http://\uff11\uff12\uff17.0.0.1/a",
        "http://no-such-host.invalid/a", "http://../a", "http://[1.2.3.4]/x", "http://1.2.3.4.5/x", "http:\\\\127.0.0.1/a",
    ],
)  # fmt: skip
def test_what_an_attacker_would_name_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="media URL"):
        check_media(naming(url), NONE)


@pytest.mark.parametrize(
    "url",
    ["http://8.8.8.8/a.png", "https://8.8.8.8:8443/a?b=c#d", "HTTPS://8.8.8.8", "http://[2606:4700:4700::1111]/a",
     "data:image/png;base64," + base64.b64encode(b"x").decode(), "DATA:image/png;base64,eA=="],
)  # fmt: skip
def test_public_hosts_and_data_pass(url: str) -> None:
    check_media(naming(url), NONE)


def test_an_allowed_host_passes_wherever_it_is() -> None:
    allowed = frozenset({"images.internal", "10.0.0.1"})
    for host in ("images.internal", "IMAGES.internal", "images.internal.", "10.0.0.1"):
        check_media(naming(f"http://{host}/a"), allowed)
    for host in ("images.internal@127.0.0.1", "a.images.internal", "images.internal.evil.invalid"):
        with pytest.raises(InvalidRequest):
            check_media(naming(f"http://{host}/a"), allowed)
    with pytest.raises(InvalidRequest):
        check_media(naming("file://images.internal/etc/passwd"), allowed)


BAD = "http://127.0.0.1/x"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": BAD},
        {"type": "input_image", "image_url": BAD},
        {"image_url": {"url": BAD}},
        {"type": "audio_url", "audio_url": {"url": BAD}},
        {"type": "video_url", "video_url": {"url": BAD}},
        {"type": "input_file", "file_url": BAD},
        {"type": "image", "source": {"type": "url", "url": BAD}},
        {"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": BAD}}]},
    ],
)  # fmt: skip
def test_every_form_of_a_url_is_found(part: dict[str, Any]) -> None:
    for body in (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]},
        {"input": [{"role": "user", "content": [part]}]},
        {"input": part},
        {"prompt": "x", "documents": {"content": [part]}},
    ):
        assert list(media_urls(body)) == [BAD]
        with pytest.raises(InvalidRequest, match=r"127\.0\.0\.1"):
            check_media(Request.from_body(body), NONE)


def test_text_and_schemas_that_speak_of_urls_are_left_alone() -> None:
    schema = {
        "type": "object",
        "properties": {"image_url": {"type": "string"}, "url": {"type": "string"}},
    }
    body = {
        "messages": [{"role": "user", "content": f'look at {BAD} and {{"image_url": "{BAD}"}}'}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
    }  # fmt: skip
    check_media(Request.from_body(body), NONE)


def test_a_body_without_urls_is_not_parsed() -> None:
    check_media(Request(body=b"not JSON, http://127.0.0.1"), NONE)


def test_hosts_of_one_request_are_bounded_and_depth_is_no_matter() -> None:
    parts = [{"image_url": {"url": f"http://host-{n}.invalid/"}} for n in range(40)]
    with pytest.raises(InvalidRequest, match="40 hosts; the limit is 32"):
        check_media(Request.from_body({"input": parts}), NONE)
    nested: Any = {"image_url": BAD}
    for _ in range(200):
        nested = [nested]
    body = orjson.dumps({"input": nested})
    with pytest.raises(InvalidRequest):
        check_media(Request(body=body), NONE)


def test_a_host_that_no_dns_can_have_is_refused_and_not_kept() -> None:
    """Regression: the cache of DNS answers kept hosts of 30 MB."""
    with pytest.raises(InvalidRequest, match="a host of 254 characters; the limit is 253"):
        host_of(f"http://{'1' * 254}/", "r")
    assert host_of(f"http://{'1' * 253}./", "r") == "1" * 253


def test_message_is_short_and_says_the_remedy() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_media(naming("http://10.0.0.1/" + "x" * 100_000), NONE)
    assert len(str(caught.value)) < 600
    assert "ask the operator to add the host to GRISTMILL_ALLOWED_MEDIA_DOMAINS" in str(
        caught.value
    )

"""The lookups of media hosts: a tenant whose hosts never answer holds up no other."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from gristmill.producer.gateway import media_guard
from gristmill.producer.gateway.http_errors import ApiError
from gristmill.producer.gateway.media_guard import MediaGuard
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import Request


def naming(host: str, tenant: str) -> Request:
    parts = [{"type": "image_url", "image_url": {"url": f"http://{host}/x.png"}}]
    return Request.from_body({"messages": [{"role": "user", "content": parts}]}, tenant=tenant)


async def test_slow_dns_of_one_tenant_refuses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: 40 calls with hosts whose DNS was silent made other tenants' images a final 400."""
    answered = threading.Event()

    def look_up(host: str, *_: Any, **__: Any) -> list[Any]:
        if host.endswith("slow.test"):
            answered.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(media_guard, "MAX_DNS_WAIT_S", 0.2)
    guard = MediaGuard(frozenset())
    try:
        slow = [guard.check(naming(f"h{n}.slow.test", "a")) for n in range(20)]
        refused = await asyncio.gather(*slow, return_exceptions=True)
        assert {getattr(each, "status", None) for each in refused} == {503}
        assert isinstance(refused[0], ApiError)
        assert refused[0].headers == {"Retry-After": "5"}
        await guard.check(naming("fast.test", "b"))
        with pytest.raises(ApiError):  # the lookups of its refused calls still run
            await guard.check(naming("fast.test", "a"))
        answered.set()
        monkeypatch.setattr(media_guard, "MAX_DNS_WAIT_S", 10)
        await guard.check(naming("fast.test", "a"))
        with pytest.raises(InvalidRequest):
            await guard.check(naming("127.0.0.1", "a"))
    finally:
        answered.set()
        guard.close()

"""The worker writes the deletion cost of its pod at an API server: a true HTTPS server with a private CA."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from certificates import make_certificates
from structlog.testing import capture_logs

from gristmill.shared.errors import SettingsError
from gristmill.shared.tasks import end
from gristmill.worker.pod_cost import ANNOTATION, Pod, is_worth_a_write, keep_pod_cost

NAME = "gristmill-worker-7c9f-x2x4b"
INTERVAL_S = 0.01


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def account(tmp_path: Path, certificates: Path) -> Path:
    """Folder of a service account, as Kubernetes mounts it."""
    (tmp_path / "token").write_text("first")
    (tmp_path / "namespace").write_text("team-a")
    (tmp_path / "ca.crt").write_text((certificates / "ca.crt").read_text())
    return tmp_path


class ApiServer:
    """Takes patches of one pod from callers with a token.

    Attributes:
        tokens: Accepted tokens.
        costs: Costs that were written, oldest first.
        num_calls: Calls that came through TLS, refused ones included.
    """

    def __init__(self) -> None:
        self.tokens = {"Bearer first"}
        self.costs: list[str] = []
        self.num_calls = 0
        self.changed = asyncio.Event()

    async def patch(self, request: web.Request) -> web.Response:
        self.num_calls += 1
        self.changed.set()
        assert request.content_type == "application/merge-patch+json"
        if request.headers["authorization"] not in self.tokens:
            raise web.HTTPForbidden
        body = await request.json()
        assert list(body["metadata"]["annotations"]) == [ANNOTATION]
        self.costs.append(body["metadata"]["annotations"][ANNOTATION])
        return web.json_response({})

    async def until(self, costs: list[str]) -> None:
        while self.costs != costs:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 10)


@pytest.fixture
async def server(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    """An API server, named by the environment as in a pod."""
    server, app = ApiServer(), web.Application()
    app.router.add_patch(f"/api/v1/namespaces/team-a/pods/{NAME}", server.patch)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(runner.addresses[0][1]))
    yield server
    await runner.cleanup()


class Load:
    """What the worker holds."""

    num_running = 0

    def __call__(self) -> int:
        return self.num_running


async def test_cost_follows_the_load_with_the_token_of_the_moment(
    server: ApiServer, account: Path
) -> None:
    load = Load()
    keeping = asyncio.create_task(
        keep_pod_cost(Pod.of_this_process(NAME, account), load, INTERVAL_S)
    )
    await server.until(["0"])
    load.num_running = 5
    await server.until(["0", "3"])
    (account / "token").write_text("second")
    server.tokens = {"Bearer second"}
    load.num_running = 0
    await server.until(["0", "3", "0"])
    await end(keeping)


async def test_a_refusal_is_logged_once_and_the_cost_written_later(
    server: ApiServer, account: Path
) -> None:
    server.tokens = set()
    with capture_logs() as logs:
        keeping = asyncio.create_task(
            keep_pod_cost(Pod.of_this_process(NAME, account), Load(), INTERVAL_S)
        )
        while server.num_calls < 3:
            await asyncio.wait_for(server.changed.wait(), 10)
            server.changed.clear()
        server.tokens = {"Bearer first"}
        await server.until(["0"])
        await end(keeping)
    (told,) = logs
    assert told["event"] == "pod_cost.not_written"
    assert "403" in told["error"]
    assert "patch on pods" in told["remedy"]


async def test_no_token_goes_to_a_server_of_another_ca(
    server: ApiServer, account: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = make_certificates(tmp_path_factory.mktemp("other"))
    (account / "ca.crt").write_text((other / "ca.crt").read_text())
    with capture_logs() as logs:
        keeping = asyncio.create_task(
            keep_pod_cost(Pod.of_this_process(NAME, account), Load(), INTERVAL_S)
        )
        while not logs:
            await asyncio.sleep(INTERVAL_S)
        await end(keeping)
    assert "certificate verify failed" in logs[0]["error"]
    assert server.num_calls == 0


def test_a_machine_that_is_no_pod_is_refused(
    account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsError, match="'KUBERNETES_SERVICE_HOST' is missing"):
        Pod.of_this_process(NAME, account)


@pytest.mark.parametrize(
    ("written", "cost", "is_written"),
    [
        (None, 0, True), (0, 0, False), (0, 1, True), (7, 0, True),
        (6, 7, False), (7, 6, False), (7, 7, False), (5, 7, True), (7, 5, True),
    ],
)  # fmt: skip
def test_only_large_changes_of_a_busy_pod_are_written(
    written: int | None, cost: int, *, is_written: bool
) -> None:
    assert is_worth_a_write(written, cost) == is_written

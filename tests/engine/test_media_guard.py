"""Test that vLLM with our arguments fetches only from allowed hosts; this needs no model."""

import os
import subprocess
import sys
from typing import Any

import pytest

from gristmill.worker.engine.vllm import arguments
from gristmill.worker.settings import WorkerSettings

pytest.importorskip("vllm")

MODEL = ["--model", "some/model"]


def connector(argv: list[str], domains: frozenset[str]) -> Any:
    from vllm.multimodal.media import MediaConnector

    args = arguments.serve_arguments(argv, domains)
    return MediaConnector(
        allowed_local_media_path=args.allowed_local_media_path,
        allowed_media_domains=args.allowed_media_domains,
    )


@pytest.fixture(autouse=True)
def _environment() -> None:
    arguments.prepare_environment()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://example.com/x", "http://[::1]/x"])
def test_no_host_is_fetched_from_unless_allowed(url: str) -> None:
    with pytest.raises(ValueError, match="must be from one of the allowed domains"):
        connector(MODEL, frozenset()).fetch_image(url)
    with pytest.raises(ValueError, match="must be from one of the allowed domains"):
        connector(MODEL, frozenset({"cdn.example.com"})).fetch_image(url)


def test_no_file_is_read() -> None:
    with pytest.raises(RuntimeError, match="Cannot load local files"):
        connector(MODEL, frozenset()).fetch_image("file:///etc/hostname")


def test_an_allowed_host_is_asked_and_redirects_are_not_followed() -> None:
    import requests

    with pytest.raises(requests.exceptions.ConnectionError):  # it is asked; nobody listens
        connector(MODEL, frozenset({"127.0.0.1"})).fetch_image("http://127.0.0.1:1/x")
    script = "import vllm.envs; raise SystemExit(vllm.envs.VLLM_MEDIA_URL_ALLOW_REDIRECTS)"
    done = subprocess.run([sys.executable, "-c", script], env=os.environ, check=False)
    assert done.returncode == 0


def test_the_flag_of_the_operator_wins() -> None:
    args = arguments.serve_arguments([*MODEL, "--allowed-media-domains", "a.example"], frozenset())
    assert args.allowed_media_domains == ["a.example"]


def test_the_setting_is_a_list_of_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_ALLOWED_MEDIA_DOMAINS", "CDN.example.com, 10.0.0.1,")
    assert WorkerSettings().allowed_media_domains == {"cdn.example.com", "10.0.0.1"}

from typing import Any

import pytest
from pydantic import ValidationError

from gristmill.shared.errors import SettingsError
from gristmill.shared.settings import QueueSettings, read_settings


def test_defaults_are_those_of_the_documents() -> None:
    settings = read_settings(QueueSettings)
    assert settings.queue == "default"
    assert settings.redis_url.get_secret_value() == "redis://localhost:6379/0"
    limits = settings.limits
    assert (limits.max_depth, limits.max_bytes) == (1_000_000, 8 * 2**30)
    assert (limits.result_ttl_ms, limits.dead_letter_ttl_ms) == (86_400_000, 604_800_000)
    assert limits.lease_ms == 15_000


@pytest.mark.parametrize("name", ["REDIS_URL", "GRISTMILL_REDIS_URL"])
def test_redis_url_is_read_under_both_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "redis://elsewhere:1/2")
    settings = read_settings(QueueSettings)
    assert settings.redis_url.get_secret_value() == "redis://elsewhere:1/2"


def test_our_prefix_wins_over_the_common_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://common")
    monkeypatch.setenv("GRISTMILL_REDIS_URL", "redis://ours")
    assert read_settings(QueueSettings).redis_url.get_secret_value() == "redis://ours"


def test_override_wins_over_the_environment_and_none_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRISTMILL_QUEUE", "from-env")
    assert read_settings(QueueSettings, queue=None).queue == "from-env"
    assert read_settings(QueueSettings, queue="given").queue == "given"
    assert (
        read_settings(QueueSettings, redis_url="redis://x").redis_url.get_secret_value()
        == "redis://x"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_DEPTH", "0"), ("MAX_BYTES", "1023"), ("MAX_REQUEST_BYTES", "many"),
        ("RESULT_TTL_S", "0"), ("DEAD_LETTER_TTL_S", "-1"), ("LEASE_S", "0"), ("LEASE_S", "nan"),
        ("SOCKET_TIMEOUT_S", "0"), ("POLL_INTERVAL_S", "61"),
    ],
)  # fmt: skip
def test_value_out_of_bounds_is_refused_by_name(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"GRISTMILL_{name}", value)
    with pytest.raises(SettingsError, match=f"GRISTMILL_{name}: "):
        read_settings(QueueSettings)


def test_blocking_time_above_the_socket_timeout_is_refused_by_name() -> None:
    with pytest.raises(
        SettingsError, match=r"poll_interval_s \(5\) must be below socket_timeout_s \(5\)"
    ):
        read_settings(QueueSettings, poll_interval_s=5, socket_timeout_s=5)


def test_replicas_to_wait_for_need_one_primary() -> None:
    url = "redis+cluster://u:s3cr3t@h"
    with pytest.raises(SettingsError, match="GRISTMILL_MIN_REPLICAS=0 and min-replicas") as caught:
        read_settings(QueueSettings, redis_url=url, min_replicas=1)
    assert "s3cr3t" not in str(caught.value)
    assert read_settings(QueueSettings, min_replicas=1).limits.min_replicas == 1


def test_wrong_url_is_refused_before_anything_starts() -> None:
    with pytest.raises(SettingsError, match="REDIS_URL cannot be read") as caught:
        read_settings(QueueSettings, redis_url="redis://u:s3/cr3t@h")
    assert "cr3t" not in str(caught.value)


def test_all_errors_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_MAX_DEPTH", "x")
    monkeypatch.setenv("GRISTMILL_LEASE_S", "y")
    with pytest.raises(SettingsError, match=r"GRISTMILL_MAX_DEPTH.*GRISTMILL_LEASE_S"):
        read_settings(QueueSettings)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"redis": "redis://h"}, "'redis' is no setting of QueueSettings; did you mean 'redis_url'?"),
        ({"max_depth": 0}, "GRISTMILL_MAX_DEPTH: Input should be greater than or equal to 1"),
        ({"redis_url": "http://h"}, "REDIS_URL has the scheme http"),
        ({"poll_interval_s": 50}, "poll_interval_s (50) must be below socket_timeout_s (30)"),
    ],
)  # fmt: skip
def test_settings_made_in_code_fail_in_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        QueueSettings(**given)
    assert str(caught.value).startswith(words)


def test_password_is_not_shown() -> None:
    settings = read_settings(QueueSettings, redis_url="redis://:secret@h")
    assert "secret" not in repr(settings)
    assert "secret" not in str(settings.model_dump())


def test_settings_do_not_change() -> None:
    settings = read_settings(QueueSettings)
    with pytest.raises(ValidationError):
        settings.queue = "other"  # type: ignore[misc]

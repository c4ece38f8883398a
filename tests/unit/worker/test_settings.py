"""Test the worker's settings: defaults, aliases, and errors that name the setting."""

import re

import pytest

from gristmill.shared.errors import SettingsError
from gristmill.shared.settings import read_settings
from gristmill.worker.settings import WorkerSettings


def test_beat_is_a_fifth_of_the_lease_unless_set() -> None:
    assert read_settings(WorkerSettings, lease_s=1.5).beat_interval_s == pytest.approx(0.3)
    assert read_settings(WorkerSettings, lease_s=15, beat_s=2).beat_interval_s == 2


def test_beat_too_slow_for_the_lease_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="GRISTMILL_BEAT_S to a third of GRISTMILL_LEASE_S"):
        read_settings(WorkerSettings, lease_s=3, beat_s=3)


def test_names_that_people_know_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BATCH_SIZE": "7", "BATCH_TIMEOUT_MS": "9", "MAX_IN_FLIGHT": "11"}.items():
        monkeypatch.setenv(name, value)
    settings = read_settings(WorkerSettings)
    assert (settings.batch_size, settings.batch_timeout_ms, settings.max_in_flight) == (7, 9, 11)
    assert settings.in_flight_limit(256) == 11


def test_in_flight_follows_the_engine_unless_set() -> None:
    assert read_settings(WorkerSettings).in_flight_limit(256) == 282


def test_one_queue_or_several_by_weight() -> None:
    assert read_settings(WorkerSettings).queues == {"default": 1}
    assert read_settings(WorkerSettings, queue="a.1").queues == {"a.1": 1}
    settings = read_settings(WorkerSettings, queue="interactive:3,bulk")
    assert settings.queues == {"interactive": 3, "bulk": 1}


@pytest.mark.parametrize("queue", ["", "a:", "a:0", "a:x", "a:1:2", "a,", "a,a:2", ":3", "a, b"])
def test_what_names_no_queues_is_refused(queue: str) -> None:
    with pytest.raises(
        SettingsError, match=rf"^GRISTMILL_QUEUE={re.escape(queue)} is no list of queues; write one"
    ):
        read_settings(WorkerSettings, queue=queue)


def test_number_of_engines_is_a_number_or_auto() -> None:
    assert read_settings(WorkerSettings).engines == 1
    assert read_settings(WorkerSettings, engines="3").engines == 3
    assert read_settings(WorkerSettings, engines="auto").engines == "auto"


@pytest.mark.parametrize("engines", ["0", "65", "two", "-1", "1.5", ""])
def test_what_is_no_number_of_engines_is_refused_once(engines: str) -> None:
    with pytest.raises(
        SettingsError,
        match=rf"^GRISTMILL_ENGINES: {engines} is no number of engines; write 1 to 64, or auto$",
    ):
        read_settings(WorkerSettings, engines=engines)

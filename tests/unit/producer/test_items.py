"""A client warns of fields that the engine ignores, once for each set of them."""

import pytest
from structlog.testing import capture_logs

from gristmill.producer import items
from gristmill.producer.items import one_request


@pytest.mark.usefixtures("plain_logging")
def test_fields_without_effect_are_warned_of_once() -> None:
    items._warn_of_unknown_fields.cache_clear()
    with capture_logs() as events:
        for body in ({"prompt": "a", "max_token": 3}, {"prompt": "b", "max_token": 4}):
            assert one_request(body, {}).unknown_fields == ("max_token",)
        one_request({"prompt": "c", "max_tokens": 3}, {})
    assert [(event["event"], event["fields"]) for event in events] == [
        ("fields.ignored", ("max_token",))
    ]

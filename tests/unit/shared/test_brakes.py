"""Test that a stray note of a brake stops no reader."""

import pytest

from gristmill.shared.brakes import Brake


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"kind":7,"num_failed":"many"}', b"\xff"])
def test_a_stray_note_has_words_all_the_same(note: bytes) -> None:
    assert Brake.parse(note).in_words().startswith("0 of the last 0 requests failed with")


def test_a_note_keeps_what_can_be_read() -> None:
    brake = Brake.parse(b'{"kind":"5xx E","num_failed":20,"message":"full","later":1}')
    assert brake == Brake("5xx E", 20, 0, "full", "unknown")

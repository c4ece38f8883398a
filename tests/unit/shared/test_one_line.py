"""Texts of others as one line."""

from gristmill.producer.top.columns import cut
from gristmill.shared.one_line import one_line

EVIL = "a\x1b]0;title\x07\nb \x9b2J\x7f\0"


def test_a_line_has_nothing_that_a_terminal_obeys() -> None:
    clean = "a\ufffd]0;title\ufffd b \ufffd2J\ufffd\ufffd"
    assert one_line(EVIL) == clean
    assert cut(EVIL, 100) == clean
    assert one_line("Grüße 😀 你好", 100) == "Grüße 😀 你好"

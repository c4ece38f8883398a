"""Say in the words of a call what the modules of tables say in the words of the command line.

This is for the errors of the call itself. An error of a row may repeat texts of the user or the engine, so it is never
rewritten.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from gristmill.shared.errors import InvalidRequest

_KEYWORDS = "prompt|system|template|image|params|model|endpoint|rename|schema|parse"

_WORDS = (
    (r"--rename (\w+)=(.+?_2|\.\.\.)", r"rename={'\1': '\2'}"),
    (r"--parse json", "parse='json'"),
    (r"--template FILE", "template=..."),
    (rf"--({_KEYWORDS}) '", r"\1='"),
    (rf"--({_KEYWORDS})\b", r"\1"),
)
"""Words of the command line -> words of a call."""


@contextmanager
def python_words() -> Iterator[None]:
    """Turn the words of the command line in an error into those of a call."""
    try:
        yield
    except InvalidRequest as error:
        reason = error.reason
        for words, keyword in _WORDS:
            reason = re.sub(words, keyword, reason)
        if reason == error.reason:
            raise
        raise type(error)(reason, error.code, request_id=error.request_id) from None

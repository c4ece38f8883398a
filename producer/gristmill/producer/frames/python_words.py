"""Say in the words of a call what the modules of tables say in the words of the command line.

This is for the errors of the call itself. An error of a row may repeat texts of the user or the engine, so it is never
rewritten.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from gristmill.shared.errors import InvalidRequest

_KEYWORDS = "prompt|system|template|image|params|model|endpoint|rename|schema|parse"

_RENAME = r"--rename (\w+)=(.+?_\d+|\.\.\.)"

_WORDS = (
    (r"--parse json", "parse='json'"),
    (r"--template FILE", "template=..."),
    (rf"--({_KEYWORDS}) '", r"\1='"),
    (rf"--({_KEYWORDS})\b", r"\1"),
)
"""Words of the command line -> words of a call."""


def _renames(options: re.Match[str]) -> str:
    return f"rename={dict(re.findall(_RENAME, options[0]))}"


@contextmanager
def python_words() -> Iterator[None]:
    """Turn the words of the command line in an error into those of a call."""
    try:
        yield
    except InvalidRequest as error:
        reason = re.sub(rf"{_RENAME}( {_RENAME})*", _renames, error.reason)
        for words, keyword in _WORDS:
            reason = re.sub(words, keyword, reason)
        if reason == error.reason:
            raise
        raise type(error)(reason, error.code, request_id=error.request_id) from None

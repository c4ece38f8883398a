"""Say in the words of a call what the modules of tables say in the words of the command line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow.compute as pc

from gristmill.shared.errors import InvalidRequest

_KEYWORDS = "prompt|system|template|image|params|model|endpoint|rename|schema"

_WORDS = (
    (r"--rename (\w+)=(.+?_2|\.\.\.)", r"rename={'\1': '\2'}"),
    (r"--skip-null", "skip_null=True"),
    (r"--parse json", "parse='json'"),
    (r"--template FILE", "template=..."),
    (rf"--({_KEYWORDS}) '", r"\1='"),
    (rf"--({_KEYWORDS})\b", r"\1"),
)
"""Words of the command line -> words of a call. Python and Arrow read these expressions alike."""


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


def errors_in_python_words(errors: Any) -> Any:
    """Return an Arrow column of errors in the words of a call."""
    for words, keyword in _WORDS:
        errors = pc.replace_substring_regex(errors, words, keyword)
    return errors

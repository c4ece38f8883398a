"""The command that resumes an interrupted `gristmill submit`, for people to copy."""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gristmill.shared.cli import say

_URL_WITH_PASSWORD = re.compile(r"\w+://\S*@\S*")


@contextmanager
def hint_on_interrupt(command: str, *, is_piped: bool) -> Iterator[None]:
    """On Ctrl-C, say how to go on.

    Args:
        command: The command that resumes the run.
        is_piped: Whether the input comes from stdin, so that it must be piped in again.
    """
    try:
        yield
    except KeyboardInterrupt:
        how = "pipe the same input into" if is_piped else "resume with"
        say(f"interrupted; what was submitted runs on, what was written stays; {how}: {command}")
        raise


def resume_command(
    arguments: Sequence[str], run: str, *, has_output: bool, is_collecting: bool = False
) -> str:
    """Return the command that goes on with a run.

    Args:
        arguments: Of this process; a URL with a password is not repeated.
        run: Added unless the output knows it.
        has_output: Whether there is one.
        is_collecting: Whether to add what writes the results.
    """
    left_out = {"--force", "--json"} if is_collecting else {"--force"}
    words = [_quoted(word) for word in arguments if word not in left_out]
    if is_collecting:
        words += ["--wait", "-o", "OUT.jsonl"]
    if not has_output and not any(word.startswith("--run") for word in words):
        words += ["--run", run]
    return " ".join(["gristmill", *words])


def _quoted(word: str) -> str:
    if found := _URL_WITH_PASSWORD.search(word):
        return word[: found.start()] + '"$REDIS_URL"'
    return shlex.quote(word)

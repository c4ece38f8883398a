"""Print the command that resumes an interrupted `gristmill submit`, for people to copy."""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gristmill.shared.cli import say
from gristmill.shared.disk_errors import disk_errors

_URL_WITH_PASSWORD = re.compile(r"\w+://\S*@\S*")


@contextmanager
def hint_on_interrupt(command: str, *, is_piped: bool) -> Iterator[None]:
    """On Ctrl-C, print the command that resumes the run.

    Args:
        command: Command that resumes the run.
        is_piped: True if the input comes from stdin, so people must pipe it in again.
    """
    try:
        yield
    except KeyboardInterrupt:
        how = "pipe the same input into" if is_piped else "resume with"
        say(f"interrupted; submitted requests run on, written rows stay; {how}: {command}")
        raise


@contextmanager
def disk_hint(path: object, command: str, *, is_piped: bool) -> Iterator[None]:
    """Turn an error about a file into one in words that has the command that resumes the run.

    Args:
        path: Where the rows go.
        command: As in `hint_on_interrupt`.
        is_piped: As in `hint_on_interrupt`.
    """
    how = "pipe the same input into" if is_piped else "resume with"
    with disk_errors(path, f"submitted requests run on; correct this, then {how}: {command}"):
        yield


def resume_command(
    arguments: Sequence[str], run: str, *, has_output: bool, is_collecting: bool = False
) -> str:
    """Return the command that continues a run.

    Args:
        arguments: Arguments of this process. The command has `$REDIS_URL` in place of a URL with a
            password.
        run: Name of the run; the command names it unless there is an output, whose record has it.
        has_output: True if the run has an output file.
        is_collecting: True to add the options that wait for the results and write them.
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

"""Print the command that resumes an interrupted run, for people to copy."""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gristmill.shared.cli import say
from gristmill.shared.disk_errors import disk_errors

_URL_WITH_PASSWORD = re.compile(r"\w+://\S*@\S*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeHint:
    """Tells people how to resume an interrupted run.

    Attributes:
        command: Command that resumes the run.
        is_piped: True if the input comes from stdin, so people must pipe it in again.
        has_other_workers: True if workers of others run the submitted requests when this command has ended.
        kept_queue: Queue that waits for the resume, for no one else can use it; "" for none.
        hidden_flags: Flags whose values the command hides.
    """

    command: str
    is_piped: bool
    has_other_workers: bool
    kept_queue: str = ""
    hidden_flags: Sequence[str] = ()

    @property
    def _how(self) -> str:
        way = "pipe the same input into" if self.is_piped else "resume with"
        hidden = ", ".join(self.hidden_flags)
        put_back = f"; put the value of {hidden} back in" if hidden else ""
        return f"{way}: {self.command}{put_back}"

    @property
    def _stays(self) -> str:
        """What this command leaves in Redis, and who runs or deletes it."""
        if self.has_other_workers:
            return "submitted requests run on; "
        if self.kept_queue:
            return f"{kept_in_words(self.kept_queue)}; "
        return ""

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """On Ctrl-C, or the exit that a signal asks for, print the command that resumes the run."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            say(f"interrupted; {self._stays}written rows stay; {self._how}")
            raise

    @contextmanager
    def on_disk_error(self, path: object) -> Iterator[None]:
        """Turn an error about a file into one in words that has the command that resumes the run.

        Args:
            path: Output of the rows.
        """
        with disk_errors(path, f"{self._stays}correct this, then {self._how}"):
            yield


def kept_in_words(queue: str) -> str:
    """Say that a queue waits for the resume of its run."""
    return (
        f"queue {queue} stays for the resume, and gristmill queue purge --queue {queue} deletes it"
    )


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
    if not has_output and not any(word.startswith("--run-name") for word in words):
        words += ["--run-name", run]
    return " ".join(["gristmill", *words])


def _quoted(word: str) -> str:
    if found := _URL_WITH_PASSWORD.search(word):
        return word[: found.start()] + '"$REDIS_URL"'
    return shlex.quote(word)

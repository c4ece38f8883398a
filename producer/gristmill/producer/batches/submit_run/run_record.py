"""The file `OUT.run` next to the output OUT: the input and the options with which the run began."""

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from gristmill.producer.batches.submit_run.run_queues import other_queue_in_words
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import shown

_KINDS = {
    "run": str, "queue": str, "input_bytes": int, "input_digest": str, "fields": dict,
    "finished": dict | None,
}  # fmt: skip
"""Types of the values in the file."""

_DERIVED = ("dedupe",)
"""Fields that may follow from the others, so an error names another one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run of an input file. A resume must have the same values.

    Attributes:
        run: Name of the run; line n of the input is the request `<run>-<n>`.
        queue: Name of the queue that has the requests.
        input_bytes: Size of the input.
        input_digest: BLAKE2 of the input.
        fields: Options that went into the requests.
        finished: Counts of a run of a table whose output is written; None before that, and for lines.
    """

    run: str
    queue: str
    input_bytes: int
    input_digest: str
    fields: Mapping[str, Any]
    finished: Mapping[str, Any] | None = None

    @staticmethod
    def beside(output: Path) -> Path:
        """Return the path of the record of an output."""
        return output.with_name(output.name + ".run")

    @classmethod
    def read(cls, output: Path) -> "RunRecord | None":
        """Return the record of an output, or None.

        Raises:
            InvalidRequest: The file has another format than `write` gives it.
        """
        path = cls.beside(output)
        if not path.exists():
            return None
        try:
            return cls._parsed(orjson.loads(path.read_bytes()))
        except OSError as error:
            message = (
                f"{path} cannot be read ({error.strerror}); move it away, or name another output"
            )
            raise InvalidRequest(message) from None
        except (ValueError, TypeError) as error:
            message = f"{path} cannot be read ({error}); begin a new run with --force"
            raise InvalidRequest(message) from None

    @classmethod
    def _parsed(cls, facts: Any) -> "RunRecord":
        record = cls(**facts)
        for name, kind in _KINDS.items():
            if not isinstance(getattr(record, name), kind):
                raise TypeError(f"{name} has another type")
        return record

    def write(self, output: Path) -> None:
        """Write the record of an output atomically."""
        path = self.beside(output)
        draft = path.with_name(path.name + ".draft")
        try:
            facts = {name: value for name, value in asdict(self).items() if value is not None}
            draft.write_bytes(orjson.dumps(facts, option=orjson.OPT_APPEND_NEWLINE))
            draft.replace(path)
        except OSError:
            with contextlib.suppress(OSError):  # a folder of this name stays
                draft.unlink(missing_ok=True)
            raise

    def check_same(self, now: "RunRecord") -> None:
        """Refuse a resume whose input, queue or options differ from those of the run.

        Args:
            now: The run as the command line asks for it now.

        Raises:
            InvalidRequest: The input, the queue or an option differs; the message names it.
        """
        remedy = "use the same as before, or begin a new run with --force"
        if now.run != self.run:
            raise InvalidRequest(f"the output belongs to run {self.run}, not {now.run}; {remedy}")
        if now.queue != self.queue:
            raise InvalidRequest(other_queue_in_words(self.run, self.queue, now.queue))
        if (now.input_bytes, now.input_digest) != (self.input_bytes, self.input_digest):
            raise InvalidRequest(
                f"the input has changed since run {self.run} began ({self.input_bytes:,} bytes then,"
                f" {now.input_bytes:,} now); {remedy}"
            )
        for name in sorted(
            self.fields.keys() | now.fields.keys(), key=lambda name: (name in _DERIVED, name)
        ):
            then, today = self.fields.get(name), now.fields.get(name)
            if then != today:
                raise InvalidRequest(
                    f"run {self.run} began with other options: {_option(name)} was {_value(then)}, and is"
                    f" {_value(today)} now; {remedy}"
                )


def _option(name: str) -> str:
    """Return an option as the user writes it; the name of one of vLLM's flags says that itself."""
    return name if " " in name else f"--{name.replace('_', '-')}"


def _value(value: Any) -> str:
    words = {None: "not given", True: "given", False: "not given"}
    return words[value] if value is None or isinstance(value, bool) else shown(value)


def fingerprint(path: Path) -> tuple[int, str]:
    """Return the size and the digest of a file."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "blake2b").hexdigest()
        return stream.tell(), digest

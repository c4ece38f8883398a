"""Ask a row once more whose answer was cut, with room for twice the tokens.

The second request has an id that derives from the first one, so a process that resumes a run finds it. The result of
the first one stays in Redis until the row has its values. So a process that resumes the run reads it and asks again.
"""

import sqlite3
from dataclasses import replace

import orjson

from gristmill.producer.batches.rows import BadLine, Line, LineReader, second_id
from gristmill.shared.errors import GristmillError
from gristmill.shared.request import Request

MORE_ROOM = 2
"""Tokens of the second answer for each token of the first one."""


class SecondAskings:
    """The rows that run, each with its body for the case that it is asked again.

    The bodies lie in a temporary database. SQLite keeps few megabytes of it in memory and the rest in the temporary
    folder of the machine. It holds the bodies of one window.

    Args:
        reader: Turns a body into a request.
        endpoint: Endpoint of the requests.
        limit: Field that limits the answers, and its tokens.

    Raises:
        GristmillError: The temporary folder cannot be written.
    """

    def __init__(self, reader: LineReader, endpoint: str, limit: tuple[str, int]) -> None:
        self._reader = reader
        self._endpoint = endpoint
        self._field, self._tokens = limit
        # The thread that opens it may be another one than the one that submits the rows.
        self._bodies = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._bodies.execute("CREATE TABLE bodies (row INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def close(self) -> None:
        """Delete the bodies."""
        self._bodies.close()

    def keep(self, number: int, request: Request) -> None:
        """Keep the body of a row that is about to run.

        Raises:
            GristmillError: The temporary folder is full or fails.
        """
        try:
            self._bodies.execute(
                "INSERT OR REPLACE INTO bodies VALUES (?, ?)", (number, request.body)
            )
        except sqlite3.OperationalError as error:
            raise GristmillError(
                f"the temporary folder: {error}; make room there, or name another one with TMPDIR, then repeat the"
                " command"
            ) from None

    def drop(self, number: int) -> None:
        """Forget the body of a row that has its values."""
        self._bodies.execute("DELETE FROM bodies WHERE row = ?", (number,))

    def can_help(self, output_tokens: int) -> bool:
        """Return whether a cut answer can be longer: not if the model's own limit has cut it.

        Args:
            output_tokens: Tokens of the answer; 0 if the engine did not count them.
        """
        return not 0 < output_tokens < self._tokens

    def request(self, number: int, max_model_len: int) -> Request | BadLine:
        """Return the second request of a row; a BadLine if its body has become too long.

        Args:
            number: Number of the row.
            max_model_len: Prompt and output tokens that the model can have; 0 if that is not known.
        """
        (body,) = self._bodies.execute(
            "SELECT body FROM bodies WHERE row = ?", (number,)
        ).fetchone()
        tokens = min(self._tokens * MORE_ROOM, max_model_len or self._tokens * MORE_ROOM)
        element = {"body": orjson.loads(body) | {self._field: tokens}, "endpoint": self._endpoint}
        entry = self._reader.read(Line(number, orjson.dumps(element), 0, 0))
        if isinstance(entry, BadLine):
            return entry
        return replace(entry, id=second_id(entry.id, tokens))

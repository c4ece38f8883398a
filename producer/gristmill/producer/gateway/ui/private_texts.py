"""Read the texts that may quote prompts and answers. The page shows one only after somebody asked for it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Literal

import orjson

from gristmill.producer.gateway.context import Gateway
from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.shared.errors import NotFound
from gristmill.shared.queue import Queue
from gristmill.shared.records import Record

Kind = Literal["prompt", "answer", "dead-letter", "first-errors"]
"""Kinds of private texts."""

TITLES: Mapping[Kind, str] = {
    "prompt": "Prompt", "answer": "Answer", "dead-letter": "Request of a dead letter", "first-errors": "First errors of a batch",
}  # fmt: skip
"""Kind of a text -> title of its page."""

MAX_INDENTED_BYTES = 64 * 1024
"""Longest JSON that is indented; at 254 levels, the most that orjson writes, it takes 16 MiB."""

MAX_ERROR_ROWS = 5
"""Most rows with an error that are shown of a batch."""

MAX_ROW_BYTES = 16 * 2**20
"""Most bytes of a batch's rows that are searched for an error."""


async def read_text(gateway: Gateway, queue: Queue, kind: Kind, subject: str) -> str:
    """Return a private text.

    Args:
        gateway: The gateway.
        queue: The queue of the subject.
        kind: What to read of it.
        subject: Id of a request, a dead letter or a batch.

    Raises:
        NotFound: The subject does not exist, or does not have the text yet or any longer.
    """
    if kind == "prompt":
        return await _prompt(queue, subject)
    if kind == "answer":
        return await _answer(queue, subject)
    if kind == "dead-letter":
        return await _dead_letter(queue, subject)
    return await _first_errors(gateway, subject)


async def _prompt(queue: Queue, request_id: str) -> str:
    redis: Any = queue.redis
    record = await retry_redis(redis.get, queue.keys.request(request_id))
    if record is None:
        raise NotFound(
            f"request {request_id[:200]!r} has ended; the queue keeps no prompt after that"
        )
    return _body_of(record)


async def _answer(queue: Queue, request_id: str) -> str:
    (result,) = await retry_redis(queue.results, [request_id])
    if result is None:
        raise NotFound(f"request {request_id[:200]!r} has no result yet, or it has expired")
    shown = {"error": result.error, "metadata": result.metadata, "body": result.body}
    return _readable(orjson.dumps(shown))


async def _dead_letter(queue: Queue, dead_id: str) -> str:
    letter = await retry_redis(queue.dead_letters.get, dead_id)
    if letter is None:
        raise NotFound(f"there is no dead letter {dead_id[:200]!r}; somebody may have requeued it")
    return _body_of(letter.record)


def _body_of(record: bytes) -> str:
    """Return the body of a record; all bytes of what is no record."""
    try:
        return _readable(Record.parse(record).body)
    except (ValueError, IndexError):
        return _readable(record)


def _readable(text: bytes) -> str:
    """Return a text, indented if it is a short JSON.

    Indentation multiplies the bytes of nested JSON: 4 MB could take 2 GB.
    """
    if len(text) <= MAX_INDENTED_BYTES:
        with suppress(ValueError, TypeError):  # no JSON, or of more levels than orjson writes
            return orjson.dumps(orjson.loads(text), option=orjson.OPT_INDENT_2).decode()
    return text.decode(errors="replace")


async def _first_errors(gateway: Gateway, batch_id: str) -> str:
    """Return the first rows of a batch that have an error, as they lie in the storage."""
    state = await gateway.batches.store.records.state(batch_id)
    chunks = await gateway.batches.results(state.record.tenant, batch_id)
    rows = [row async for row in _error_rows(chunks)]
    return "\n".join(rows) or "No row with an error is written so far."


async def _error_rows(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    rest, num_bytes, num_rows = b"", 0, 0
    async for chunk in chunks:
        num_bytes += len(chunk)
        *rows, rest = (rest + chunk).split(b"\n")
        for row in filter(_has_error, rows):
            yield row.decode(errors="replace")
            num_rows += 1
            if num_rows == MAX_ERROR_ROWS:
                return
        if num_bytes >= MAX_ROW_BYTES:
            yield f"(looked at the first {MAX_ROW_BYTES // 2**20} MiB of rows)"
            return


def _has_error(row: bytes) -> bool:
    try:
        fields = orjson.loads(row)
    except ValueError:
        return False
    if not isinstance(fields, dict):
        return False
    response = fields.get("response") or {}
    return bool(fields.get("error")) or response.get("status_code", 200) >= 400

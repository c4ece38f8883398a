"""The table of questions and answers that the demo prints at its end."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import orjson

if TYPE_CHECKING:
    from rich.table import Table

NUM_SHOWN = 8
MAX_ANSWER_CHARACTERS = 240


def answer_table(requests: Path, output: Path) -> "Table":
    """Return a table of up to `NUM_SHOWN` questions and answers, spread evenly over the file."""
    from rich.table import Table
    from rich.text import Text

    answers = {row["custom_id"]: row["response"] for row in _rows(output)}
    pairs = [
        (request, answers.get(request.get("custom_id", str(number))))
        for number, request in enumerate(_rows(requests), 1)
    ]
    answered = [(request, response) for request, response in pairs if _has_text(response)]
    table = Table("question", "answer", "tokens", show_lines=True)
    for request, response in answered[:: max(1, len(answered) // NUM_SHOWN)][:NUM_SHOWN]:
        body = response["body"]
        tokens = str(body["usage"]["completion_tokens"])
        table.add_row(*map(Text, (_question(request), _answer(body), tokens)))
    return table


def _has_text(response: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    return response is not None and "choices" in (response["body"] or {})


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as stream:
        yield from (orjson.loads(line) for line in stream if line.strip())


def _question(request: dict[str, Any]) -> str:
    body = request.get("body", request)
    messages = body.get("messages")
    return str(messages[-1]["content"] if messages else body.get("prompt", ""))


def _answer(body: dict[str, Any]) -> str:
    choice = body["choices"][0]
    text = str(choice["message"]["content"] if "message" in choice else choice.get("text")).strip()
    return text if len(text) <= MAX_ANSWER_CHARACTERS else text[:MAX_ANSWER_CHARACTERS] + " ..."

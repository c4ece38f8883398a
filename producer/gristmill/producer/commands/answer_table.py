"""A table of prompts and their answers for people: of the demo, and of `--preview`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.shared.answers import list_in, mapping
from gristmill.shared.one_line import json_line

if TYPE_CHECKING:
    from rich.table import Table

MAX_CHARACTERS = 240
"""Characters of a prompt or an answer that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAnswer:
    """A row of the table.

    Attributes:
        prompt: Text of the request.
        fields: Name of a column -> the value that the answer gives it.
        output_tokens: Tokens of the answer.
        error: Why there is no answer; None if there is one.
    """

    prompt: str
    fields: Mapping[str, Any]
    output_tokens: int
    error: str | None = None


def answer_table(answers: Sequence[ShownAnswer], most: int) -> "Table":
    """Return a table of up to `most` answers, spread evenly over those that are there."""
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(name for answer in answers for name in answer.fields))
    has_errors = any(answer.error for answer in answers)
    table = Table("question", *names, *["error"] * has_errors, "tokens", show_lines=True)
    for answer in answers[:: max(1, len(answers) // most)][:most]:
        cells = [answer.prompt, *(_text(answer.fields.get(name)) for name in names)]
        cells += [answer.error or ""] * has_errors
        table.add_row(*(Text(_cut(cell)) for cell in cells), Text(str(answer.output_tokens)))
    return table


def prompt_of(body: Mapping[str, Any]) -> str:
    """Return the text of a body that is most its own: the last message, or the prompt."""
    messages = list_in(body.get("messages"))
    if not messages:
        return _text(body.get("prompt", body.get("input")))
    content = mapping(messages[-1]).get("content")
    texts = [mapping(part).get("text") for part in list_in(content)]
    return " ".join(text for text in texts if isinstance(text, str)) if texts else _text(content)


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json_line(value, default=str).decode()


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + " ..."

"""The questions and answers of the demo, from its two files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from gristmill.producer.commands.answer_table import ShownAnswer, prompt_of
from gristmill.shared.answers import answer_text, mapping, token_counts


def demo_answers(requests: Path, output: Path) -> list[ShownAnswer]:
    """Return the questions that have an answer, in their order."""
    answers = {row["custom_id"]: row["response"] for row in _rows(output)}
    pairs = [
        (request, mapping(answers.get(request.get("custom_id", str(number)))).get("body"))
        for number, request in enumerate(_rows(requests), 1)
    ]
    return [
        ShownAnswer(
            prompt=prompt_of(request.get("body", request)),
            fields={"answer": answer_text(body)},
            output_tokens=token_counts(body)[1],
        )
        for request, body in pairs
        if answer_text(body) is not None
    ]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as stream:
        yield from (orjson.loads(line) for line in stream if line.strip())

"""Records and answers of given lengths, for the tests of admission."""

from gristmill.shared.records import Record
from gristmill.worker.engine.interface import Response


def record(
    prompt_tokens: int, max_tokens: int, body: bytes = b"{}", priority: str = "normal"
) -> Record:
    header = f"1|0|0|default|{priority}|d||{prompt_tokens}|{max_tokens}|3||/v1/completions|||"
    return Record.parse(header.encode() + b"\n\n" + body)


def answered(prompt_tokens: int, output_tokens: int, cached_tokens: int = 0) -> Response:
    return Response(
        200,
        b"{}",
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached_tokens,
    )

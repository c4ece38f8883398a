"""Make one line of a text that has any length; for lists, messages and failures."""


def one_line(text: str, max_characters: int | None = None) -> str:
    """Return a text with its white space as single spaces.

    Args:
        text: Any text; pydantic's errors have several lines.
        max_characters: Length to which the line is cut, marked with `...`; None for no limit.
    """
    line = " ".join(text.split())
    if max_characters is None or len(line) <= max_characters:
        return line
    return f"{line[: max_characters - 3]}..."

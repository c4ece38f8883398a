"""Make one short line of a text that has any length; for lists and messages of commands."""


def one_line(text: str, max_characters: int) -> str:
    """Return a text with its white space as single spaces, cut to a length that is marked with `...`."""
    line = " ".join(text.split())
    return line if len(line) <= max_characters else f"{line[: max_characters - 3]}..."

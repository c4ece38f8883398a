"""The options of a table, for each command that runs one."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gristmill.producer.tables.spec import TableSpec

_FILE = click.Path(dir_okay=False, path_type=Path)

_OPTIONS: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "prompt": click.option(
        "--prompt",
        metavar="TEXT",
        help="User's message for each row of a table: 'Classify: {column}'.",
    ),
    "system": click.option(
        "--system", metavar="TEXT", help="System message for each row, as it is."
    ),
    "template": click.option(
        "--template",
        metavar="FILE",
        type=_FILE,
        help="Jinja file that renders the messages of a row.",
    ),
    "params": click.option(
        "--params",
        metavar="FILE",
        type=_FILE,
        help="JSON file with the other fields of each request.",
    ),
    "max_tokens": click.option(
        "--max-tokens",
        metavar="N",
        type=click.IntRange(min=1),
        help="Most tokens of each answer.  [default: what the model allows]",
    ),
    "model": click.option(
        "--model", metavar="NAME", help="Model of each row's request.  [default: none]"
    ),
    "image": click.option(
        "--image", metavar="COLUMN", help="Column of image URLs, or of the bytes of images."
    ),
    "schema": click.option(
        "--schema",
        metavar="FILE|MODULE:CLASS",
        help="JSON Schema of the answers, or a Pydantic model; its properties become columns.",
    ),
    "parse": click.option(
        "--parse",
        type=click.Choice(["json"]),
        help="Check the answers by --schema, but do not constrain the model to it.",
    ),
    "skip_null": click.option(
        "--skip-null",
        is_flag=True,
        help="Leave rows unanswered that have a null in a used column, instead of with an error.",
    ),
    "dedupe": click.option(
        "--dedupe/--no-dedupe",
        default=None,
        help="Run identical requests of a table once.  [default: at temperature 0]",
    ),
    "rename": click.option(
        "--rename",
        metavar="NAME=NEW",
        multiple=True,
        help="New name of a column that the output adds, such as answer=label; repeatable.",
    ),
}
"""Options by the name of their field in `TableSpec`, in the order of the help."""

_NOT_GIVEN = (None, False, ())


@dataclass(frozen=True, slots=True)
class TableArguments:
    """The options of a table as they were given.

    Attributes:
        values: Field of `TableSpec` -> the option's value before its file is read.
    """

    values: dict[str, Any]

    def has_prompt(self) -> bool:
        """Return True if columns become requests, and refuse options that only those need.

        Raises:
            click.UsageError: An option needs --prompt or --template, which is not there.
        """
        if self.values["prompt"] is not None or self.values["template"] is not None:
            return True
        self.refuse(_OPTIONS, "is for tables; give --prompt or --template, too")
        return False

    def refuse(self, names: Iterable[str], reason: str) -> None:
        """Refuse options.

        Args:
            names: Fields of the options.
            reason: Why none of them may be given, and the remedy.

        Raises:
            click.UsageError: One of them was given.
        """
        for name in names:
            if self.values[name] not in _NOT_GIVEN:
                raise click.UsageError(f"--{name.replace('_', '-')} {reason}")

    def spec(self, endpoint: str | None) -> "TableSpec":
        """Return what to ask for each row.

        Args:
            endpoint: Endpoint of the requests; None for chat.

        Raises:
            InvalidRequest: The options do not fit together, or a file cannot be read.
        """
        from gristmill.producer.tables.answer_schema import read_schema
        from gristmill.producer.tables.spec import TableSpec, read_params, read_template

        readers: Mapping[str, Callable[[Any], Any]] = {
            "template": read_template, "params": read_params, "schema": read_schema, "rename": _pairs,
        }  # fmt: skip
        fields = {
            name: readers[name](value) if name in readers else value
            for name, value in (self.values | {"endpoint": endpoint}).items()
            if value is not None
        }
        return TableSpec(**fields)


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a table to a command; it gets them as `table`, a `TableArguments`."""

    @functools.wraps(command)
    def with_table(*args: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in _OPTIONS}
        return command(*args, table=TableArguments(given), **options)

    for option in reversed(list(_OPTIONS.values())):
        with_table = option(with_table)
    return with_table


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    return dict(map(_pair, texts))


def _pair(text: str) -> tuple[str, str]:
    name, mark, new = text.partition("=")
    if not (name and mark and new):
        raise click.UsageError(
            f"--rename {text!r} is no pair; write NAME=NEW, such as answer=label"
        )
    return name, new

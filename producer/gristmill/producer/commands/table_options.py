"""The options of a table, for each command that runs one."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gristmill.producer.tables.spec import TableSpec

_FILE = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableArguments:
    """The options of a table as they were given; `table_options` lists their meanings."""

    prompt: str | None
    system: str | None
    template: Path | None
    params: Path | None
    model: str | None
    image: str | None
    skip_null: bool
    dedupe: bool | None
    rename: tuple[str, ...]

    def has_prompt(self) -> bool:
        """Return True if columns become requests, and refuse options that only those need.

        Raises:
            click.UsageError: An option needs --prompt or --template, which is not there.
        """
        if self.prompt is not None or self.template is not None:
            return True
        for name in ("system", "params", "model", "image", "skip_null", "dedupe", "rename"):
            if getattr(self, name) not in (None, False, ()):
                raise click.UsageError(
                    f"--{name.replace('_', '-')} is for tables; give --prompt or --template, too"
                )
        return False

    def spec(self, endpoint: str | None) -> "TableSpec":
        """Return what to ask for each row.

        Args:
            endpoint: Endpoint of the requests; None for chat.

        Raises:
            InvalidRequest: The options do not fit together, or a file cannot be read.
        """
        from gristmill.producer.tables.spec import TableSpec, read_params, read_template

        at = {} if endpoint is None else {"endpoint": endpoint}
        return TableSpec(
            prompt=self.prompt,
            system=self.system,
            template=None if self.template is None else read_template(self.template),
            params={} if self.params is None else read_params(self.params),
            model=self.model,
            image=self.image,
            skip_null=self.skip_null,
            dedupe=self.dedupe,
            rename=dict(_pair(text) for text in self.rename),
            **at,
        )


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a table to a command; it gets them as `table`, a `TableArguments`."""

    @click.option(
        "--prompt",
        metavar="TEXT",
        help="User's message for each row of a table: 'Classify: {column}'.",
    )
    @click.option("--system", metavar="TEXT", help="System message for each row, as it is.")
    @click.option(
        "--template",
        metavar="FILE",
        type=_FILE,
        help="Jinja file that renders the messages of a row.",
    )
    @click.option(
        "--params",
        metavar="FILE",
        type=_FILE,
        help="JSON file with the other fields of each request.",
    )
    @click.option("--model", metavar="NAME", help="Model of each row's request.  [default: none]")
    @click.option(
        "--image", metavar="COLUMN", help="Column of image URLs, or of the bytes of images."
    )
    @click.option(
        "--skip-null",
        is_flag=True,
        help="Leave rows unanswered that have a null in a used column, instead of with an error.",
    )
    @click.option(
        "--dedupe/--no-dedupe",
        default=None,
        help="Run identical requests of a table once.  [default: at temperature 0]",
    )
    @click.option(
        "--rename",
        metavar="NAME=NEW",
        multiple=True,
        help="New name of a column that the output adds, such as answer=label; repeatable.",
    )
    @functools.wraps(command)
    def with_table(*args: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in TableArguments.__dataclass_fields__}
        return command(*args, table=TableArguments(**given), **options)

    return with_table


def _pair(text: str) -> tuple[str, str]:
    name, mark, new = text.partition("=")
    if not (name and mark and new):
        raise click.UsageError(
            f"--rename {text!r} is no pair; write NAME=NEW, such as answer=label"
        )
    return name, new

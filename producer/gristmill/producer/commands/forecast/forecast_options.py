"""The options of a forecast, for each command that runs an input."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

MAX_PREVIEW = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """The model of the workers that the command itself would start.

    Attributes:
        name: Name or folder of the model.
        tokenizer: Name or folder of its tokenizer.
        revision: Commit, tag or branch of the tokenizer; None for the default.
        max_model_len: Prompt and output tokens of a request; None if no flag says it.
    """

    name: str
    tokenizer: str
    revision: str | None
    max_model_len: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOptions:
    """The questions about a run that take its place.

    Attributes:
        dry_run: True to check the input and count its tokens.
        preview: Rows to run as a sample; None for none.
        tokenizer: Name or folder of the tokenizer that the user gives; None for that of `model`.
        model: Model of the workers of this command; None if others serve the queue.
    """

    dry_run: bool = False
    preview: int | None = None
    tokenizer: str | None = None
    model: OwnModel | None = None

    def check(self) -> None:
        """Refuse options that do not go together.

        Raises:
            click.UsageError: Two options exclude each other, or one needs another.
        """
        if self.dry_run and self.preview is not None:
            raise click.UsageError(
                "--dry-run runs no request and --preview runs some; leave one out"
            )
        if self.tokenizer is not None and not self.dry_run:
            raise click.UsageError("--tokenizer counts tokens for --dry-run; give that, too")


def forecast_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a forecast to a command; it gets them as `forecast`."""

    @click.option(
        "--dry-run",
        is_flag=True,
        help="Check everything and count tokens; start and submit nothing.",
    )
    @click.option(
        "--preview",
        metavar="N",
        type=click.IntRange(2, MAX_PREVIEW),
        help="Run N rows, show their answers and predict tokens and hours; write no output.",
    )
    @click.option(
        "--tokenizer",
        metavar="FOLDER|NAME",
        help="Tokenizer that counts for --dry-run.  [default: that of a --model after --, else an"
        " estimate]",
    )
    @functools.wraps(command)
    def with_forecast(
        *args: Any, dry_run: bool, preview: int | None, tokenizer: str | None, **options: Any
    ) -> Any:
        asked = ForecastOptions(dry_run=dry_run, preview=preview, tokenizer=tokenizer)
        return command(*args, forecast=asked, **options)

    return with_forecast

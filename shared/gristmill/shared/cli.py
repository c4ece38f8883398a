"""Run the command `gristmill` with the commands that each portion contributes.

Commands are entry points of the group `gristmill.commands`. They are loaded when they are called or
listed, so no portion imports another. A machine without an extra still has the other commands. A
module of commands imports click and little else at its top, so that `gristmill --help` is quick.

Messages for people go to stderr, data to stdout. A command returns its exit code: 0 or None when
all went well, 1 when some requests failed. `run` turns errors into 2, 3, 4 and 130.
"""

import functools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from gristmill.shared.disk_errors import disk_error_in_words, drop_stdout, is_disk_error
from gristmill.shared.errors import (
    GristmillError,
    InvalidRequest,
    NotFound,
    RedisUnreachable,
    SettingsError,
)
from gristmill.shared.install import missing_module

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")

GROUP = "gristmill.commands"

NOT_FOUND, BAD_INPUT, REDIS_UNREACHABLE, OTHER_ERROR, INTERRUPTED = 1, 2, 3, 4, 130
"""Exit codes of errors."""


class FiniteRange(click.FloatRange):
    """A finite number within bounds.

    Click's own range accepts NaN, because every comparison with NaN is false.
    """

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; reject NaN and infinity."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Commands(click.Group):
    """A group whose commands are entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, without loading any."""
        return sorted(metadata.entry_points(group=GROUP).names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command; if its extra is missing, return one that says how to install it."""
        found = metadata.entry_points(group=GROUP, name=cmd_name)
        if not found:
            return None
        try:
            loaded: click.Command = next(iter(found)).load()
        except ModuleNotFoundError as error:
            return _unavailable(cmd_name, missing_module(error, cmd_name))
        return loaded

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name; the error about an unknown one names a similar one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self.list_commands(ctx), 1)
            if near:
                raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None
            raise


def _unavailable(name: str, reason: str) -> click.Command:
    def refuse(**_: object) -> None:
        raise GristmillError(f"gristmill {name}: {reason}")

    return click.Command(
        name,
        callback=refuse,
        short_help=f"({reason})",
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
    )


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gristmill", message="%(prog)s %(version)s")
def gristmill() -> None:
    """Feed LLM requests from Redis to vLLM workers, and collect their results.

    \b
    gristmill demo                              everything on this machine, no set-up
    gristmill run FILE -o OUT -- --model MODEL  run a file on this machine, resumable
    gristmill submit FILE --wait -o OUT         run a file on a fleet, resumable
    gristmill worker -- --model MODEL           serve the queue with a GPU
    """  # noqa: D301  # click reads a true backspace


def main() -> None:
    """Run the command line of this process and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; print an error as one line on stderr, and return the exit code."""
    try:
        code = gristmill.main(list(arguments), prog_name="gristmill", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:
        words = _in_words(error, next(iter(arguments), ""))
        if words is None:
            raise
        click.echo(f"gristmill: {words}", err=True)
        return exit_code(words)
    return code if isinstance(code, int) else 0


def _in_words(error: Exception, command: str) -> GristmillError | None:
    """Return a command's error with a message for people, or None for a bug, which needs its traceback."""
    has_lost_output = drop_stdout()
    if isinstance(error, GristmillError):
        return error
    if isinstance(error, ModuleNotFoundError):
        return GristmillError(missing_module(error, command))
    if isinstance(error, OSError) and is_disk_error(error):
        return disk_error_in_words(error, "stdout" if has_lost_output else "the output")
    if type(error).__module__ != "redis.exceptions":  # checked without importing redis-py
        return None
    from gristmill.shared.redis_trouble import error_in_words

    return error_in_words(error, "", "REDIS_URL (or --redis-url)")


def exit_code(error: GristmillError) -> int:
    """Return 1 for an unknown id, 2 for wrong input or settings, 3 for an unreachable Redis, 4 for other errors."""
    if isinstance(error, NotFound):
        return NOT_FOUND
    if isinstance(error, InvalidRequest | SettingsError):
        return BAD_INPUT
    return REDIS_UNREACHABLE if isinstance(error, RedisUnreachable) else OTHER_ERROR


redis_url_option = click.option(
    "--redis-url",
    metavar="URL",
    help="URL of Redis.  [env: REDIS_URL; default: redis://localhost:6379/0]",
)
queue_option = click.option(
    "--queue",
    metavar="NAME",
    help="Name of the queue.  [env: GRISTMILL_QUEUE; default: default]",
)


def queue_options(command: Callable[P, R]) -> Callable[..., R]:
    """Add `--redis-url` and `--queue` to a command; it gets `settings`, a `QueueSettings`."""
    return queue_option(redis_options(command))


def redis_options(command: Callable[P, R]) -> Callable[..., R]:
    """Add `--redis-url` to a command that needs no queue; it gets `settings`, a `QueueSettings`."""

    @redis_url_option
    @functools.wraps(command)
    def with_settings(
        *args: Any, redis_url: str | None, queue: str | None = None, **options: Any
    ) -> R:
        from gristmill.shared.settings import QueueSettings, read_settings

        _check_encoding(click.get_current_context())
        settings = read_settings(QueueSettings, redis_url=redis_url, queue=queue)
        with redis_errors(settings.redis_url.get_secret_value()):
            return command(*args, settings=settings, **options)  # type: ignore[arg-type]  # click passes names

    return with_settings


def _check_encoding(context: click.Context) -> None:
    """Refuse arguments that are not UTF-8, which Redis and JSON cannot have; paths may be so.

    Python stands a lone surrogate for each such byte.
    """
    for parameter in context.command.params:
        given = context.params.get(parameter.name or "")
        values = given if isinstance(given, tuple) else (given,)
        if isinstance(parameter.type, click.Path):
            continue
        for value in values:
            if isinstance(value, str) and not value.isascii() and _has_surrogate(value):
                raise click.BadParameter(f"{value!r} is not UTF-8", context, parameter)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


@contextmanager
def redis_errors(url: str) -> Iterator[None]:
    """Turn errors of redis-py into Gristmill's.

    Args:
        url: URL of this Redis; the message has it without user and password.

    Raises:
        RedisUnreachable: No connection, no answer, or a wrong password.
        SettingsError: The URL names a database that Redis does not have.
        GristmillError: Redis answered with another error.
    """
    from redis.exceptions import RedisError

    from gristmill.shared.redis_trouble import error_in_words

    try:
        yield
    except RedisError as error:
        raise error_in_words(error, url, "REDIS_URL (or --redis-url)") from None


@functools.cache
def people() -> "Console":
    """Return the console for people: stderr, shared by messages and progress bars."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def cache_folder() -> Path:
    """Return the folder that keeps models and other downloads between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gristmill"


def made_folder(path: Path, option: str = "--out") -> Path:
    """Create the folder for a command's output if it is missing, and return it.

    Args:
        path: Path of the folder.
        option: Option that names another folder, for the message.

    Raises:
        SettingsError: The folder cannot be created, or nothing can be written into it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise SettingsError(
            f"cannot write to {path}: {error.strerror}; choose another folder with {option}"
        ) from None
    return path


def say(message: str) -> None:
    """Print one line for people, unwrapped, above a progress bar if there is one."""
    people().print(message, markup=False, soft_wrap=True)


if __name__ == "__main__":
    from gristmill.shared import cli  # what commands import; -m loads this file twice

    cli.main()

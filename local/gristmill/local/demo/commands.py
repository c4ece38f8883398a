"""The command `gristmill demo`."""

from pathlib import Path

import click

from gristmill.shared.cli import cache_folder


@click.command()
@click.option(
    "--requests",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSONL file to run.  [default: 40 chat requests that come with Gristmill]",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
    default=Path("demo-output.jsonl"), show_default=True, help="File for the rows; overwritten.",
)  # fmt: skip
@click.option(
    "--cache", type=click.Path(file_okay=False, path_type=Path),
    default=cache_folder, help="Folder for the model.  [default: ~/.cache/gristmill]",
)  # fmt: skip
@click.option("--redis-url", metavar="URL", help="URL of Redis.  [default: an embedded server]")
@click.option("--model", metavar="MODEL", help="Model for vLLM.  [default: SmolLM2-135M]")
def demo(
    requests: Path | None, output: Path, cache: Path, redis_url: str | None, model: str | None
) -> int:
    """Show everything, with no set-up.

    Starts a Redis and a worker with a small model, and runs a file of requests through them. Prints
    answers and speed, and stops Redis and the worker.
    """
    from gristmill.local.demo.run_demo import REQUESTS, Demo

    return Demo(
        requests=requests or REQUESTS,
        output=output,
        cache=cache,
        redis_url=redis_url,
        model=model,
    ).run()

"""The command `gristmill steward`."""

import sys

import click


@click.command()
@click.option(
    "--redis-url",
    metavar="URL",
    help="URL of Redis.  [env: REDIS_URL; default: redis://localhost:6379/0]",
)
@click.option(
    "--queue",
    metavar="NAME",
    help="Name of the queue.  [env: GRISTMILL_QUEUE; default: default]",
)
def steward(redis_url: str | None, queue: str | None) -> None:
    """Run batches until a signal stops it: validate files, submit lines, write rows, call webhooks.

    Start several stewards to work on several batches at a time. Every other setting is an
    environment variable; see docs/settings.md. Exit codes: 0 after a signal, 2 if a setting is wrong,
    3 if Redis refuses the login.
    """
    from gristmill.producer.steward.jobs import steward_jobs
    from gristmill.producer.steward.process import run_steward
    from gristmill.producer.steward.settings import StewardSettings
    from gristmill.shared.cli import redis_errors
    from gristmill.shared.settings import read_settings

    settings = read_settings(StewardSettings, redis_url=redis_url, queue=queue)
    with redis_errors(settings.rq_url):
        sys.exit(run_steward(settings, steward_jobs(settings)))

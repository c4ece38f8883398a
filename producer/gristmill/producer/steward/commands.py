"""The command `gristmill steward`."""

import sys

import click


@click.command()
@click.option("--redis-url", metavar="URL", help="URL of Redis.  [env: REDIS_URL]")
@click.option("--queue", metavar="NAME", help="Name of the queue.  [env: GRISTMILL_QUEUE]")
def steward(redis_url: str | None, queue: str | None) -> None:
    """Move batches forward until a signal stops it: validate, feed, write results, call webhooks.

    Run several to work on several batches at a time. Every other setting is an environment
    variable; see the README. Exit codes: 0 stopped, 2 a setting is wrong, 3 Redis refuses the
    password.
    """
    from gristmill.producer.steward.jobs import steward_jobs
    from gristmill.producer.steward.process import run_steward
    from gristmill.producer.steward.settings import StewardSettings
    from gristmill.shared.cli import redis_errors
    from gristmill.shared.settings import read_settings

    settings = read_settings(StewardSettings, redis_url=redis_url, queue=queue)
    with redis_errors(settings.rq_url):
        sys.exit(run_steward(settings, steward_jobs(settings)))

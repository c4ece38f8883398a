"""The command `gristmill steward`."""

import sys

import click

from gristmill.shared.cli import queue_option, redis_errors, redis_url_option


@click.command()
@redis_url_option
@queue_option
def steward(redis_url: str | None, queue: str | None) -> None:
    """Run batches until a signal stops it: validate files, submit lines, write rows, call webhooks.

    Start several stewards to work on several batches at a time. Every other setting is an
    environment variable; see docs/settings.md. Exit codes: 0 after a signal, 2 if a setting is wrong,
    3 if Redis refuses the login.
    """
    from gristmill.producer.steward.jobs import concurrent_works, steward_jobs
    from gristmill.producer.steward.process import run_steward
    from gristmill.producer.steward.settings import StewardSettings
    from gristmill.shared.settings import read_settings

    settings = read_settings(StewardSettings, redis_url=redis_url, queue=queue)
    with redis_errors(settings.rq_url):
        registry = steward_jobs(settings)
        sys.exit(run_steward(settings, registry, concurrent_works(settings, registry.time_slice)))

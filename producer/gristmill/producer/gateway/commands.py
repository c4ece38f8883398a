"""The command `gristmill gateway`."""

import click

from gristmill.shared.cli import queue_option, redis_url_option
from gristmill.shared.settings import read_settings


@click.command()
@redis_url_option
@queue_option
@click.option(
    "--host", help="Address to listen on.  [env: GRISTMILL_GATEWAY_HOST; default: 127.0.0.1]"
)
@click.option(
    "--port",
    type=int,
    help="Port to listen on; 0 picks a free port.  [env: GRISTMILL_GATEWAY_PORT; default: 8000]",
)
def gateway(redis_url: str | None, queue: str | None, host: str | None, port: int | None) -> int:
    """Serve OpenAI's API over HTTP: live requests with streams, files, batches; and single requests.

    `gristmill tenant create NAME` makes an API key. While no tenant exists, a gateway on a loopback
    address needs no key. Every other setting is an environment variable; see docs/settings.md.
    """
    from gristmill.producer.gateway.server import run_gateway
    from gristmill.producer.gateway.settings import GatewaySettings

    settings = read_settings(
        GatewaySettings, redis_url=redis_url, queue=queue, gateway_host=host, gateway_port=port
    )
    return run_gateway(settings)

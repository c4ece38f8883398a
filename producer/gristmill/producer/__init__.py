"""The producer's side: clients and the commands that submit requests and read results."""

from gristmill.producer.client import Client
from gristmill.producer.sync import SyncClient

__all__ = ["Client", "SyncClient"]

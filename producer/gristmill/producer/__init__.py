"""The producer's side: clients and the commands that submit requests and read results.

The names here are the public interface; `docs/python.md` explains each. Everything else is private.
"""

from gristmill.producer.client import Client
from gristmill.producer.sync import SyncClient
from gristmill.producer.table_calls import map_table, map_table_async
from gristmill.shared.errors import (
    GristmillError,
    IdConflict,
    InvalidRequest,
    NotServed,
    QueueFull,
    RedisUnreachable,
    ResultExpired,
    SettingsError,
    WrongFormat,
)
from gristmill.shared.request import Request
from gristmill.shared.results import Result
from gristmill.shared.settings import QueueSettings

__all__ = [
    "Client",
    "GristmillError",
    "IdConflict",
    "InvalidRequest",
    "NotServed",
    "QueueFull",
    "QueueSettings",
    "RedisUnreachable",
    "Request",
    "Result",
    "ResultExpired",
    "SettingsError",
    "SyncClient",
    "WrongFormat",
    "map_table",
    "map_table_async",
]

"""What a module needs of a queue if it only reads and writes keys; `Queue` has it."""

from typing import Protocol

from gristmill.shared.keys import Keys
from gristmill.shared.redis_types import AnyRedis


class QueueAccess(Protocol):
    """The Redis of a queue and the names of its keys."""

    redis: AnyRedis
    keys: Keys

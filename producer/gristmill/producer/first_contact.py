"""Make sure that Redis answers at the first call of a client, so that a wrong URL is an error and no endless wait."""

import asyncio
from functools import partial

from redis.exceptions import RedisError

from gristmill.shared.format_check import check_format
from gristmill.shared.keys import Keys
from gristmill.shared.redis_eviction import warn_of_eviction
from gristmill.shared.redis_retry import retrying
from gristmill.shared.redis_trouble import error_in_words
from gristmill.shared.redis_types import AnyRedis
from gristmill.shared.tasks import end

FIRST_ANSWER_S = 10.0
"""Seconds after which a Redis that has never answered is an error. A Redis that starts beside the program is
up by then; later calls wait without a limit, because then the URL is right."""


class FirstContact:
    """The first answer of a client's Redis; calls made at the same time share one attempt.

    Args:
        redis: The client of Redis.
        keys: The keys of the queue.
        url: Its URL, for messages, which leave user and password out.
    """

    def __init__(self, redis: AnyRedis, keys: Keys, url: str) -> None:
        self._redis, self._keys = redis, keys
        self._url = url
        self._attempt: asyncio.Task[None] | None = None
        self._has_answered = False

    async def wait(self) -> None:
        """Return when Redis has answered once.

        Raises:
            RedisUnreachable: No answer within `FIRST_ANSWER_S`, or a refused login.
            SettingsError: The URL names a database that Redis does not have.
            WrongFormat: Another version wrote the queue.
        """
        if self._has_answered:
            return
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.create_task(self._ping(), name="gristmill-first-contact")
        await asyncio.shield(self._attempt)

    async def aclose(self) -> None:
        """End a running attempt."""
        await end(self._attempt)

    async def _ping(self) -> None:
        try:
            await retrying(self._redis.ping, FIRST_ANSWER_S)
            await retrying(partial(check_format, self._redis, self._keys), FIRST_ANSWER_S)
        except (RedisError, OSError) as error:
            raise error_in_words(error, self._url) from None
        await warn_of_eviction(self._redis, self._url)
        self._has_answered = True

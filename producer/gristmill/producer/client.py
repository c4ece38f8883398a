"""The producer's client: submit requests, wait for results. `docs/python.md` lists what is public.

One `Client` a process is enough: it holds a connection pool and one task that waits for every result.
`sync.py` is its twin for code without an event loop.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import Any, Self

from ulid import ULID

from gristmill.producer.arguments import (
    check_call,
    check_timeout_s,
    many_ids,
    one_id,
    scope_of,
    settings_of,
)
from gristmill.producer.first_contact import FirstContact
from gristmill.producer.item_starter import ItemStarter
from gristmill.producer.items import Body, Ids, ItemReader, Requests, one_request
from gristmill.producer.open_calls import OpenCalls
from gristmill.producer.own_ids import OwnIds
from gristmill.producer.stream import Stream, grouped
from gristmill.producer.submit_lease import Hold, SubmitLease
from gristmill.producer.submitter import Submitter
from gristmill.producer.waiter import Waiter, result_expired
from gristmill.producer.window_size import WINDOW
from gristmill.producer.worker_watch import WorkerWatch
from gristmill.shared.chunking import chunks
from gristmill.shared.connection import connect
from gristmill.shared.operations import IDS_A_CALL, State
from gristmill.shared.pauses import this_user
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
from gristmill.shared.request import FIELDS, Request, check_names
from gristmill.shared.results import Result
from gristmill.shared.settings import QueueSettings

SUBMIT_CHUNK = 128
"""Requests that `submit_many` sends in one call."""


class Client:
    """Submits requests and waits for their results.

    Args:
        settings: Redis, the queue and its bounds; None reads the environment.
        queue: An open queue, whose Redis has answered, to use instead of a connection to that of `settings`;
            closed with the client.
        name: Name of the reply list, unique to this client; None makes a fresh one.
        is_quiet: True does not warn when calls wait and no worker lives.

    Attributes:
        queue: The queue.
        name: Name of the reply list.

    Raises:
        SettingsError: A setting of the environment is wrong.

    A request is done when its result is written; the result's `status` says how it ended. The first call
    raises `RedisUnreachable` if Redis does not answer within 10 s, or refuses the login, and `WrongFormat` if
    another version wrote the queue. Nothing is lost when
    Redis is away later: calls wait until it is back.
    """

    def __init__(
        self,
        settings: QueueSettings | None = None,
        *,
        queue: Queue | None = None,
        name: str | None = None,
        is_quiet: bool = False,
    ) -> None:
        settings = settings_of(settings, queue)
        self.queue = queue or _connected(settings)
        url = settings.redis_url.get_secret_value()
        self._first_contact = (
            None if queue else FirstContact(self.queue.redis, self.queue.keys, url)
        )
        self.name = name or f"client-{ULID()}"
        self._calls = OpenCalls()
        self._watch = WorkerWatch(self.queue, is_quiet=is_quiet)
        self._waiter = Waiter(self.queue, self.name, self._watch)
        self._submitter = Submitter(
            self.queue,
            self.name,
            max_request_bytes=settings.max_request_bytes,
            check_models=settings.check_models,
        )
        self._own = OwnIds()
        self._starter = ItemStarter(self._submitter, self._waiter)
        self._lease = SubmitLease(self.queue, self.name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop waiting and close the connections. Submitted requests run on; a second call does nothing."""
        if (
            self._calls.is_closed or self._calls.is_forked
        ):  # a fork leaves its parent's connections alone
            return
        await self._calls.close()
        await self._lease.aclose()
        await self._waiter.aclose()
        if self._first_contact:
            await self._first_contact.aclose()
        await self.queue.redis.aclose()

    async def submit(
        self, request: Request | Body, *, wait_if_full: bool = True, **fields: Any
    ) -> str:
        """Submit one request.

        Args:
            request: A body, or a `Request`.
            wait_if_full: True waits while the queue or Redis is full; False raises `QueueFull`.
            **fields: Fields of `Request` that go with a body.

        Returns:
            Its id. Submitting the same request under the same id again changes nothing.

        Raises:
            InvalidRequest: It breaks a rule, or a keyword is unknown.
            NotServed: The queue has workers, and none serves its model or endpoint.
            IdConflict: Its id belongs to another request.
            QueueFull: The queue is at its cap, or Redis is full, and `wait_if_full` is false.
        """
        check_names(fields, ("wait_if_full", *FIELDS))
        made = one_request(request, fields)
        async with self._call():
            codes, error = await self._submitter.submit([made], wait_if_full=wait_if_full)
        if error:
            raise error
        if codes == ["accepted"]:
            self._own.add([made.id])
        return made.id

    async def submit_many(self, requests: Requests, **fields: Any) -> list[str]:
        """Submit requests in bulk, waiting while the queue is full.

        Args:
            requests: Bodies or `Request`s.
            **fields: Fields of `Request` that go with each body.

        Returns:
            Their ids, in order.

        Raises:
            InvalidRequest, NotServed, IdConflict: As `submit`; requests before the bad one are in the queue.
        """
        check_call("submit_many", requests, fields)
        reader = ItemReader(fields)
        ids: list[str] = []
        hold = Hold(self._lease)
        async with self._submitting_call(hold):
            async for group in grouped(requests, SUBMIT_CHUNK):
                submitted, error = await self._starter.submit(reader, hold, group)
                ids.extend(request.id for request, _ in submitted)
                self._own.add(request.id for request, code in submitted if code == "accepted")
                if error:
                    raise error
        return ids

    async def result(self, request_id: str) -> Result | None:
        """Return a result, or None while the request is not finished.

        Raises:
            ResultExpired: The queue does not know the id.
        """
        one_id(request_id)
        async with self._call():
            result = (await retrying(lambda: self.queue.results([request_id])))[0]
        if result is None and (await self.status([request_id]))[0][0] == "unknown":
            raise result_expired(request_id, self.queue.keys.queue)
        return result

    async def wait(self, request_id: str, timeout_s: float | None = None) -> Result:
        """Wait for a result.

        Args:
            request_id: The id that `submit` returned, in this process or another.
            timeout_s: Longest wait in seconds; None waits without a limit.

        Raises:
            TimeoutError: It is not there after `timeout_s`; the message has the state of queue and workers.
                The request runs on.
            ResultExpired: The queue does not know the id.
        """
        one_id(request_id)
        check_timeout_s(timeout_s)
        future = None
        try:
            async with asyncio.timeout(timeout_s) as limit, self._call():
                is_own = request_id in self._own
                future = self._waiter.expect(request_id, is_own=is_own)
                if is_own:
                    await self._waiter.look(request_id)
                return await asyncio.shield(future)
        except TimeoutError:
            if timeout_s is None or not limit.expired():
                raise
            message = await self._watch.timeout_message(request_id, timeout_s)
            raise TimeoutError(message) from None
        finally:
            if future:
                self._waiter.forget(request_id, future)

    def map(
        self, requests: Requests, *, window: int = WINDOW, **fields: Any
    ) -> AsyncGenerator[Result, None]:
        """Submit requests and yield their results in the same order.

        Args:
            requests: Bodies or `Request`s, any number; read as the window allows.
            window: Requests that may be unfinished at a time, which bounds Redis and this process.
            **fields: Fields of `Request` that go with each body.

        Raises:
            InvalidRequest, NotServed, IdConflict: As `submit`; raised when the item at fault is read. Requests
                before it are in the queue.
        """
        check_call("map", requests, fields, ("window",))
        return self._stream(ItemReader(fields), requests, window).in_order()

    def as_completed(
        self, items: Requests | Ids, *, window: int = WINDOW, **fields: Any
    ) -> AsyncGenerator[Result, None]:
        """Yield results as requests finish.

        Args:
            items: Either bodies or `Request`s, which are submitted as the window allows, or ids of requests
                that were submitted before. The first item decides; a call takes one kind.
            window: Items that may be unfinished at a time, which bounds Redis and this process.
            **fields: Fields of `Request` that go with each body.

        Raises:
            InvalidRequest, NotServed, IdConflict: An item is at fault; raised when it is read. Requests before
                it are in the queue.
            ResultExpired: The queue does not know an id.
        """
        check_call("as_completed", items, fields, ("window",))
        reader = ItemReader(fields, may_be_ids=True)
        return self._stream(reader, items, window).as_completed()

    @asynccontextmanager
    async def submitting(self) -> AsyncIterator[None]:
        """Tell workers that more requests will come, until the block ends.

        A worker with `--until-empty` ends when the queue is empty and no producer is submitting. A call with
        many items says so by itself. Use this around several calls, such as requests that depend on results.
        """
        hold = Hold(self._lease)
        async with self._call():
            await hold.take()
        with hold:
            yield

    async def cancel(self, ids: Iterable[str]) -> list[str]:
        """Cancel requests; returns a code for each: queued or running (cancelled now), done, unknown."""
        calls = chunks(many_ids(ids), IDS_A_CALL)
        async with self._call():
            codes = [await retrying(partial(self.queue.cancel, chunk)) for chunk in calls]
        return list(chain.from_iterable(codes))

    async def status(self, ids: Iterable[str]) -> list[tuple[State, str]]:
        """Return the state of each request and the worker that runs it, or ""."""
        calls = chunks(many_ids(ids), IDS_A_CALL)
        async with self._call():
            states = [await retrying(partial(self.queue.status, chunk)) for chunk in calls]
        return list(chain.from_iterable(states))

    async def pause(self, *, batch: str = "", reason: str = "") -> bool:
        """Let no worker claim from the queue, or from one batch. What runs ends; submits are accepted.

        Args:
            batch: Name of the group, or id of the batch; "" pauses the whole queue.
            reason: Why, in up to 200 characters without line breaks; `gristmill queue stats` shows it with your
                user name and the time.

        Returns:
            True; False if it was paused already, which changes nothing: the first reason stays.

        Raises:
            InvalidRequest: The name or the reason is not allowed.
        """
        scope = scope_of(batch)
        async with self._call():
            pause, name = self.queue.pauses.pause, str(ULID())
            return await retrying(lambda: pause(scope, this_user(), reason, call=name))

    async def resume(self, *, batch: str = "") -> bool:
        """Let workers claim again; returns False if it was not paused."""
        scope = scope_of(batch)
        async with self._call():
            return await retrying(lambda: self.queue.pauses.resume(scope))

    def _stream(self, reader: ItemReader, items: Any, window: int) -> Stream[Any]:
        """Return the stream of one call."""
        hold = Hold(self._lease)
        start = partial(self._starter.start, reader, hold)
        open_call = partial(self._submitting_call, hold)
        return Stream(items, window, start, self._waiter.forget, open_call)

    @asynccontextmanager
    async def _submitting_call(self, hold: Hold) -> AsyncIterator[None]:
        """Run a call that submits, and give its hold on the client's lease back at its end."""
        async with self._call():
            with hold:
                yield

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Run a call of the current task; it begins when Redis has answered once.

        Raises:
            InvalidRequest: The client is closed, also while the call runs; see `OpenCalls.open`.
            RedisUnreachable, SettingsError: See `FirstContact.wait`.
        """
        with self._calls.open():
            if self._first_contact:
                await self._first_contact.wait()
            yield


def _connected(settings: QueueSettings) -> Queue:
    redis = connect(settings.redis_url.get_secret_value(), settings.socket_timeout_s)
    return Queue(redis, settings.queue, settings.limits)

"""The client for code without an event loop: the same methods, the same results, no `await`."""

import concurrent.futures
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from gristmill.producer.arguments import check_call, closed_client, forked_client, many_ids
from gristmill.producer.client import Client
from gristmill.producer.items import Body
from gristmill.producer.loop_thread import LoopThread
from gristmill.producer.pulled import Pulled, SourceFailed
from gristmill.producer.window_size import WINDOW
from gristmill.shared.operations import State
from gristmill.shared.request import Request
from gristmill.shared.results import Result
from gristmill.shared.settings import QueueSettings

T = TypeVar("T")


class SyncClient:
    """The methods of `Client` without `await`; the client runs on an event loop in its own thread.

    Args:
        settings: Redis, the queue and its bounds; None reads the environment.

    Raises:
        SettingsError: A setting of the environment is wrong.
    """

    def __init__(self, settings: QueueSettings | None = None) -> None:
        self._client = Client(settings)
        self._thread = LoopThread("gristmill-client")
        self._closing = threading.Lock()
        self._is_closed = False
        self._process = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop waiting and close the connections. Submitted requests run on; a second call does nothing."""
        if self._is_forked:  # the loop runs in the parent process
            return
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self._thread.start(self._client.aclose()).result()
            self._thread.stop()  # ends the calls that other threads still make, too

    def submit(self, request: Request | Body, *, wait_if_full: bool = True, **fields: Any) -> str:
        """See `Client.submit`."""
        return self._run(self._client.submit(request, wait_if_full=wait_if_full, **fields))

    def submit_many(self, requests: Iterable[Request | Body], **fields: Any) -> list[str]:
        """See `Client.submit_many`."""
        check_call("submit_many", requests, fields, takes_async=False)
        source = Pulled(requests)
        try:
            return self._run(self._client.submit_many(source, **fields))
        finally:
            source.stop()

    def result(self, request_id: str) -> Result | None:
        """See `Client.result`."""
        return self._run(self._client.result(request_id))

    def wait(self, request_id: str, timeout_s: float | None = None) -> Result:
        """See `Client.wait`."""
        return self._run(self._client.wait(request_id, timeout_s))

    def map(
        self, requests: Iterable[Request | Body], *, window: int = WINDOW, **fields: Any
    ) -> Iterator[Result]:
        """See `Client.map`."""
        check_call("map", requests, fields, ("window",), takes_async=False)
        source = Pulled(requests)
        return self._iterate(self._client.map(source, window=window, **fields), source)

    def as_completed(
        self,
        items: Iterable[Request | Body] | Iterable[str],
        *,
        window: int = WINDOW,
        **fields: Any,
    ) -> Iterator[Result]:
        """See `Client.as_completed`."""
        check_call("as_completed", items, fields, ("window",), takes_async=False)
        source: Pulled[Any] = Pulled(items)
        return self._iterate(self._client.as_completed(source, window=window, **fields), source)

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """See `Client.submitting`."""
        block = self._client.submitting()
        self._run(block.__aenter__())
        try:
            yield
        finally:
            if not self._is_closed:  # else the client has ended the block
                self._run(block.__aexit__(None, None, None))

    def cancel(self, ids: Iterable[str]) -> list[str]:
        """See `Client.cancel`."""
        return self._run(self._client.cancel(many_ids(ids)))

    def status(self, ids: Iterable[str]) -> list[tuple[State, str]]:
        """See `Client.status`."""
        return self._run(self._client.status(many_ids(ids)))

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    def pause(self, *, batch: str = "", reason: str = "") -> bool:
        """See `Client.pause`."""
        return self._run(self._client.pause(batch=batch, reason=reason))

    def resume(self, *, batch: str = "") -> bool:
        """See `Client.resume`."""
        return self._run(self._client.resume(batch=batch))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return self._answer(coroutine)
        except SourceFailed as failed:
            error = failed.error
        raise error  # out here, so that it keeps its own cause and context

    def _answer(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._is_forked or self._is_closed:
            coroutine.close()
            raise forked_client() if self._is_forked else closed_client()
        call = self._thread.start(coroutine)
        try:
            return call.result()
        except concurrent.futures.CancelledError:
            if self._is_closed:
                raise closed_client() from None
            raise
        finally:
            call.cancel()  # after Ctrl-C; of no effect on a call that has ended

    def _iterate(
        self, results: AsyncGenerator[Result, None], source: Pulled[Any]
    ) -> Iterator[Result]:
        async def advance() -> Result | None:
            return await anext(results, None)

        try:
            while (result := self._run(advance())) is not None:
                yield result
        finally:
            source.stop()
            # Not waited for: the garbage collector may run this in the loop's thread.
            if not self._is_closed and not self._is_forked:
                self._thread.start(results.aclose())

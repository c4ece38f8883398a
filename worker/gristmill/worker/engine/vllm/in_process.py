"""Run the engine in this process: AsyncLLM behind vLLM's own OpenAI layer, without socket or server.

The serving objects (`serving.py`) answer the requests that they can take. The ASGI application
(`asgi.py`) answers all others. Both answer as `vllm serve` would. One thread builds and shuts down
in order. A close during a build makes the build fail, waits for its end and then cleans up.
"""

import asyncio
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from http import HTTPStatus
from typing import Any, TypeVar

import structlog

from gristmill.shared.body_schemas import published_facts
from gristmill.shared.errors import EngineDied, EngineUnavailable, GristmillError
from gristmill.shared.one_line import one_line
from gristmill.shared.tasks import end
from gristmill.worker.engine.bodies import ABORTED
from gristmill.worker.engine.endpoints import served
from gristmill.worker.engine.interface import (
    EngineInfo,
    EngineStats,
    OnEvent,
    Response,
    RunLimits,
)
from gristmill.worker.engine.refusals import constraint_failed, refusal, too_long
from gristmill.worker.engine.streamed_answer import StreamedAnswer
from gristmill.worker.engine.vllm import building, compat
from gristmill.worker.engine.vllm.asgi import Application
from gristmill.worker.engine.vllm.building import Core
from gristmill.worker.engine.vllm.core_process import CoreReports
from gristmill.worker.engine.vllm.large_prompts import LargePrompts
from gristmill.worker.engine.vllm.runaway import guard
from gristmill.worker.engine.vllm.schema_errors import with_keyword
from gristmill.worker.engine.vllm.serving import ServingObjects
from gristmill.worker.engine.vllm.token_progress import TokenProgress
from gristmill.worker.engine.vllm.trace import Trace, traced
from gristmill.worker.flag_secrets import without_secrets

log = structlog.get_logger(__name__)

T = TypeVar("T")

POLL_S = 0.1
"""Seconds between two looks at a shutdown that waits for a build."""

DEATH_LOOK_S = 1.0
"""Seconds between two looks for a death while a check waits for the engine."""

CUT_S = 10.0
"""Seconds after a request's time limit that the runaway guard has to cut it and get its text."""

ABORT_CHECK_S = 5.0
"""Seconds in which the engine must show that it lives, after it aborted an answer unasked."""


class InProcessEngine:
    """vLLM in this process; see `Engine` for the contract."""

    def __init__(
        self,
        argv: Sequence[str],
        limits: RunLimits | None = None,
        media_domains: Collection[str] = (),
    ) -> None:
        """Keep the arguments; parse and load nothing before `start`.

        Args:
            argv: The arguments of `vllm serve`, such as `["--model", "X"]`.
            limits: Limits at which the runaway guard cuts a request.
            media_domains: Hosts from which vLLM may fetch media, unless `argv` names them.
        """
        self._argv = tuple(argv)
        self._limits = limits or RunLimits()
        self._media_domains = media_domains
        self._large_prompts = LargePrompts()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._reports: CoreReports | None = None
        self._core: Core | None = None  # only the thread writes it
        self._running: _Running | None = None

    async def start(self) -> EngineInfo:
        """Build the engine and answer one tiny request with it; see `Engine.start`."""
        started_at = time.monotonic()
        await self.close()
        await self._in_thread(self._build)
        try:
            self._running = await self._serve(self._built())
            await self._warm_up(self._running.info)
        except BaseException as error:
            await self.close()
            if isinstance(error, GristmillError) or not isinstance(error, Exception):
                raise
            # An adapter of --lora-modules, for example, is loaded only here.
            message = f"the engine did not start: {type(error).__name__}: {one_line(str(error))}"
            raise EngineDied(message) from error
        await self._in_thread(building.freeze_heap)
        info = self._running.info
        log.info(
            "engine.started", start_s=round(time.monotonic() - started_at, 3), model=info.models[0]
        )
        return info

    async def post(
        self, endpoint: str, body: bytes, *, priority: int = 0, on_event: OnEvent | None = None
    ) -> Response:
        """Answer one request; see `Engine.post`."""
        running = self._alive()
        info, may_stream = running.info, on_event is not None
        refused = refusal(endpoint, body, info.endpoints, info.max_num_seqs, may_stream=may_stream)
        if refused is not None:
            return refused
        streamed = StreamedAnswer(endpoint, body, on_event) if on_event else None
        limit_s = self._limits.max_request_s
        try:
            with traced() as trace:
                async with (
                    self._large_prompts.turn(body, trace),
                    asyncio.timeout(limit_s + CUT_S) as scope,
                ):
                    response = await running.post(endpoint, body, priority, streamed)
        except EngineDied as error:
            raise running.core.death(str(error)) from error
        except TimeoutError:
            if not scope.expired():
                raise
            return replace(too_long(limit_s), cut="max_request_s")
        return await self._judged(await with_keyword(response, body), trace)

    async def check(self, timeout_s: float) -> None:
        """Check that the engine's busy loop answers; see `Engine.check`.

        vLLM's `check_health` succeeds even if the input thread is dead or the process is stopped.
        `is_paused` needs both to work.
        """
        running = self._alive()
        try:
            async with asyncio.timeout(timeout_s):
                await self._sign_of_life(running.core.engine)
        except TimeoutError as error:
            raise running.core.death(f"the engine did not answer within {timeout_s} s") from error
        except Exception as error:
            raise running.core.death(f"the engine is dead ({type(error).__name__})") from error
        if running.progress.is_stalled(self.stats(), timeout_s):
            raise running.core.death(f"the engine yielded no token in {timeout_s} s")

    @staticmethod
    async def _sign_of_life(engine: Any) -> None:
        """Wait for the busy loop's answer.

        The call never returns if the engine dies during it. So the method looks for a death every
        `DEATH_LOOK_S` seconds, and raises the engine's error.
        """
        asking = asyncio.ensure_future(engine.is_paused())
        try:
            while not asking.done():
                await asyncio.wait([asking], timeout=DEATH_LOOK_S)
                if engine.errored:
                    raise engine.dead_error
            asking.result()
        finally:
            asking.cancel()

    def evidence(self) -> Mapping[str, Any]:
        """Return the arguments, the counters and the end of the log; see `Engine.evidence`."""
        return {
            "engine_args": without_secrets(self._argv),
            "engine_stats": asdict(self.stats()),
            "engine_log": self._reports.log_tail() if self._reports else [],
        }

    def expect_group(self, number: int) -> None:
        """Announce a group of requests; they enter EngineCore together."""
        if self._core is not None:
            self._core.gate.expect(number)

    def stats(self) -> EngineStats:
        """Return the counters since the last start; zeros before the first start."""
        if self._core is None:
            return EngineStats()
        from gristmill.worker.engine.vllm.statistics import summed

        return summed(self._core.counters)

    async def close(self) -> None:
        """Shut down in the thread, and end a build that still runs there; safe to call twice."""
        if self._running:
            await end(self._running.guarding)
        self._running = None
        shutdown = asyncio.ensure_future(self._in_thread(self._shut_down))
        while not shutdown.done():
            if self._core is None and self._reports is not None:
                self._reports.kill()  # a build runs; this makes it fail
            await asyncio.wait([shutdown], timeout=POLL_S)
        shutdown.result()

    def _build(self) -> None:
        self._reports = CoreReports()
        self._core = building.build(self._argv, self._reports, self._media_domains)

    def _shut_down(self) -> None:
        if self._core is not None:
            self._core.shut_down()
        if self._reports is not None:
            self._reports.close()
        self._core = self._reports = None

    async def _in_thread(self, step: Callable[[], T]) -> T:
        """Run a step in the engine's thread; if the caller is cancelled, the step still runs on."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, step)

    async def _serve(self, core: Core) -> "_Running":
        """Set up vLLM's application with the engine, as vLLM's server does."""
        build_app, init_app_state = compat.openai_layer()
        tasks = await core.engine.get_supported_tasks()
        await core.engine.reset_mm_cache()
        app = await self._in_thread(lambda: build_app(core.args, tasks, core.engine.model_config))
        await init_app_state(core.engine, app.state, core.args, tasks)
        models = await app.state.openai_serving_models.show_available_models()
        paths = served((getattr(route, "path", "") for route in app.routes), app.state)
        info = replace(
            building.info_of(core, [card.id for card in models.data], paths),
            body_schemas=await self._in_thread(lambda: _body_schemas(app, paths)),
        )
        application = Application(app, building.api_keys(core.args))
        guarding = asyncio.create_task(guard(core.engine, core.generations, self._limits))
        return _Running(core, info, ServingObjects(app.state), application, guarding)

    async def _warm_up(self, info: EngineInfo) -> None:
        """Answer one tiny request, so that the first real request need not wait for the warm-up."""
        fields: dict[str, dict[str, Any]] = {
            "/v1/completions": {"prompt": "a", "max_tokens": 1},
            "/pooling": {"input": "a"},
        }
        for endpoint in fields.keys() & set(info.endpoints):
            body = json.dumps({"model": info.models[0], **fields[endpoint]}).encode()
            response = await self.post(endpoint, body)
            log.info("engine.warmed_up", endpoint=endpoint, status=response.status)
            if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise EngineDied(f"the warm-up request failed: {response.body.decode()}")

    def _built(self) -> Core:
        if self._core is None:
            raise EngineDied("the engine was closed while it started")
        return self._core

    def _alive(self) -> "_Running":
        if self._running is None:
            raise EngineDied("the engine is not started")
        if self._running.core.engine.errored:
            raise self._running.core.death("the engine is dead")
        return self._running

    async def _judged(self, response: Response, trace: Trace) -> Response:
        """Return the response if it is the request's own outcome; raise if it is the engine's.

        An abort that the worker did not ask for looks like a success with half the text, so it must
        not become a result. A 500 belongs to the request as long as the engine lives.
        """
        if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            reports = self._alive().core.reports
            if cause := reports.failed_constraint(trace.request_ids):
                return constraint_failed(cause)
        if response.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
            raise EngineUnavailable(
                f"the engine takes no more requests: {response.body.decode()}", is_refusal=True
            )
        if trace.is_aborted or response.finish_reason == ABORTED:
            await self.check(ABORT_CHECK_S)
            raise EngineUnavailable("the engine aborted the request unasked")
        return trace.completed(response)


class _Running:
    """The state between a start and a close."""

    def __init__(
        self,
        core: Core,
        info: EngineInfo,
        serving: ServingObjects,
        application: Application,
        guarding: "asyncio.Task[None]",
    ) -> None:
        self.core, self.info = core, info
        self.guarding = guarding
        self.progress = TokenProgress()
        self._serving, self._application = serving, application

    async def post(
        self, endpoint: str, body: bytes, priority: int, streamed: StreamedAnswer | None
    ) -> Response:
        """Answer with the serving objects if they take the request, else with the application."""
        body = streamed.body if streamed else body
        response = await self._serving.post(endpoint, body, priority, streamed)
        if response is None:
            response = await self._application.post(endpoint, body, priority, streamed)
        return response


def _body_schemas(app: Any, endpoints: Collection[str]) -> dict[str, str]:
    """Return the facts that publish the schemas of bodies; empty if vLLM cannot describe its API."""
    try:
        return published_facts(app.openapi(), endpoints)
    except Exception as error:  # noqa: BLE001  # a type of a plug-in, say; no request needs this
        log.warning("schemas.not_published", error=f"{type(error).__name__}: {error}")
        return {}

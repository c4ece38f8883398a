"""Simulate an engine without a model, for scheduling tests, load simulation and fault tests.

It answers chat and completions by repeating the words of the prompt up to `max_tokens`. So a test
knows each answer beforehand and can tell which request it belongs to.
"""

import asyncio
import json
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

from gristmill.shared.errors import EngineDied
from gristmill.worker.engine.bodies import described
from gristmill.worker.engine.interface import EngineInfo, EngineStats, OnEvent, Response
from gristmill.worker.engine.refusals import error_response, refusal
from gristmill.worker.engine.streamed_answer import StreamedAnswer
from gristmill.worker.engine.stub_batch import Sequence, StubBatch
from gristmill.worker.engine.stub_chunks import StubChunks

MODEL = "stub"
ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
DEFAULT_MAX_TOKENS = 16
DEATH = "the stub engine was told to die"


class StubEngine:
    """An engine that yields one token a step; see `Engine` for the contract.

    Attributes:
        fault: Answer to every request at once, as of a broken engine; None while it is well.
        num_faults: Number of these answers.
    """

    def __init__(
        self, *, token_delay_s: float = 0.0, max_num_seqs: int = 256, kv_cache_tokens: int = 0
    ) -> None:
        """Make the engine.

        Args:
            token_delay_s: Seconds of a step; 0 answers each request at once.
            max_num_seqs: Requests that run at the same time.
            kv_cache_tokens: Prompt and output tokens that the running requests may hold; 0 for any
                number.
        """
        self._token_delay_s = token_delay_s
        self._max_num_seqs, self._kv_cache_tokens = max_num_seqs, kv_cache_tokens
        self.fault: Response | None = None
        self.num_faults = 0
        self._begin()

    async def start(self) -> EngineInfo:
        """Start the engine, also again after `die`."""
        self._begin()
        return EngineInfo(
            "stub",
            (MODEL,),
            ENDPOINTS,
            self._max_num_seqs,
            vllm_version="stub",
            kv_cache_tokens=self._kv_cache_tokens,
        )

    async def post(
        self, endpoint: str, body: bytes, *, priority: int = 0, on_event: OnEvent | None = None
    ) -> Response:
        """Echo the prompt; see `Engine.post`."""
        await self.check(0)
        may_stream = on_event is not None
        refused = refusal(endpoint, body, ENDPOINTS, self._max_num_seqs, may_stream=may_stream)
        if refused is not None:
            return refused
        if self.fault is not None:
            self.num_faults += 1
            return self.fault
        fields = json.loads(body)
        words = _prompt(fields).split()
        max_tokens = fields.get("max_tokens") or DEFAULT_MAX_TOKENS
        if max_tokens < 1:
            message = f"max_tokens must be at least 1, got {max_tokens}."
            return error_response(400, message, "BadRequestError", "max_tokens")
        answer = self._answer(endpoint, words, max_tokens)
        streamed = StreamedAnswer(endpoint, body, on_event) if on_event else None
        chunks = StubChunks(answer, max_tokens, streamed.feed) if streamed else None
        if self._token_delay_s:
            on_token = chunks.send_until if chunks else None
            await self._steps.run(Sequence(len(words), max_tokens, priority), on_token)
        self._count(len(words), max_tokens)
        if chunks and streamed:
            chunks.send_until(max_tokens)
            return streamed.response()
        return described(200, json.dumps(answer).encode(), answer)

    async def check(self, timeout_s: float) -> None:
        """Raise EngineDied after `die`."""
        if self._is_dead:
            raise EngineDied(DEATH)

    def evidence(self) -> dict[str, Any]:
        """Return fixed engine arguments; see `Engine.evidence`."""
        return {"engine_args": ["stub"]}

    def expect_group(self, number: int) -> None:
        """Do nothing; a request starts when it comes."""

    def stats(self) -> EngineStats:
        """Return the counters since the last start."""
        batch = self._steps.batch
        return EngineStats(
            running=batch.num_running,
            waiting=batch.num_waiting,
            kv_cache_usage=batch.usage,
            prompt_tokens=self._prompt_tokens,
            output_tokens=max(self._output_tokens, batch.num_output_tokens),
            preemptions=batch.num_preemptions,
            steps=self._num_answers,
        )

    async def close(self) -> None:
        """End the requests in flight with EngineDied."""
        self.die()

    def die(self) -> None:
        """Fail all requests, in flight and new, with EngineDied until the next start."""
        self._is_dead = True
        self._steps.fail()

    def _begin(self) -> None:
        self._is_dead = False
        self._steps = _Steps(
            StubBatch(self._max_num_seqs, self._kv_cache_tokens), self._token_delay_s
        )
        self._prompt_tokens = self._output_tokens = self._num_answers = 0

    def _answer(self, endpoint: str, words: list[str], max_tokens: int) -> dict[str, Any]:
        text = " ".join(islice(cycle(words or ["empty"]), max_tokens))
        usage = {"prompt_tokens": len(words), "completion_tokens": max_tokens}
        usage["total_tokens"] = len(words) + max_tokens
        return _completion(endpoint, text) | {"model": MODEL, "created": 0, "usage": usage}

    def _count(self, prompt_tokens: int, output_tokens: int) -> None:
        self._num_answers += 1
        self._prompt_tokens += prompt_tokens
        self._output_tokens += output_tokens


class _Steps:
    """The timer that steps a batch while it holds sequences, from a start to a death.

    It uses the event loop's clock.
    """

    def __init__(self, batch: StubBatch, step_s: float) -> None:
        self.batch = batch
        self._step_s = step_s
        self._ends: dict[Sequence, asyncio.Future[None]] = {}
        self._on_token: dict[Sequence, Callable[[int], None]] = {}
        self._next: asyncio.TimerHandle | None = None

    async def run(self, sequence: Sequence, on_token: Callable[[int], None] | None = None) -> None:
        """Wait for the last token of a sequence.

        Args:
            sequence: The sequence.
            on_token: Called after each of its tokens with their number so far.

        Raises:
            EngineDied: The engine died before the last token.
        """
        loop = asyncio.get_running_loop()
        if not self._ends:
            self._plan(loop.time())
        end = self._ends[sequence] = loop.create_future()
        self.batch.add(sequence)
        if on_token:
            self._on_token[sequence] = on_token
        try:
            await end
        finally:
            self.batch.remove(sequence)
            del self._ends[sequence]
            self._on_token.pop(sequence, None)
            if not self._ends and self._next:
                self._next.cancel()

    def fail(self) -> None:
        """End every sequence in the batch with EngineDied."""
        for end in self._ends.values():
            if not end.done():
                end.set_exception(EngineDied(DEATH))

    def _plan(self, now_s: float) -> None:
        loop = asyncio.get_running_loop()
        due_s = now_s + self._step_s
        self._next = loop.call_at(due_s, self._step, due_s)

    def _step(self, now_s: float) -> None:
        """Step the batch, and plan the next step.

        The next step is due one step after this one was due, so a late call does not delay it.
        """
        ended = self.batch.step()
        for sequence, on_token in self._on_token.items():
            on_token(sequence.num_output_tokens)
        for sequence in ended:
            if not self._ends[sequence].done():  # it may have been aborted in this turn of the loop
                self._ends[sequence].set_result(None)
        self._plan(now_s)


def _prompt(fields: dict[str, Any]) -> str:
    if "messages" in fields:
        return str(fields["messages"][-1]["content"])
    return str(fields.get("prompt", ""))


def _completion(endpoint: str, text: str) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    if endpoint == "/v1/completions":
        return {
            "id": "cmpl-stub",
            "object": "text_completion",
            "choices": [choice | {"text": text}],
        }
    message = {"role": "assistant", "content": text}
    choices = [choice | {"message": message}]
    return {"id": "chatcmpl-stub", "object": "chat.completion", "choices": choices}

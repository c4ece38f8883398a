"""An engine without a model: for scheduling tests, load simulation and faults.

It answers chat and completions with the words of the prompt, again and again, up to `max_tokens`;
so each answer is known beforehand and belongs to one request.
"""

import asyncio
import contextlib
import json
from itertools import cycle, islice
from typing import Any

from gristmill.shared.errors import EngineDied
from gristmill.worker.engine.bodies import described
from gristmill.worker.engine.interface import EngineInfo, EngineStats, Response
from gristmill.worker.engine.refusals import refusal

MODEL = "stub"
ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
DEFAULT_MAX_TOKENS = 16


class StubEngine:
    """Answers after a given delay, any number at the same time; see `Engine` for the contract."""

    def __init__(
        self, *, delay_s: float = 0.0, token_delay_s: float = 0.0, max_num_seqs: int = 256
    ) -> None:
        """Make the engine.

        Args:
            delay_s: Seconds before the first token.
            token_delay_s: Seconds for each output token.
            max_num_seqs: What it says of itself; it limits nothing.
        """
        self._delay_s, self._token_delay_s = delay_s, token_delay_s
        self._max_num_seqs = max_num_seqs
        self._death = asyncio.Event()
        self._running = self._prompt_tokens = self._output_tokens = self._steps = 0

    async def start(self) -> EngineInfo:
        """Start, or start anew after `die`."""
        self._death = asyncio.Event()
        return EngineInfo("stub", (MODEL,), ENDPOINTS, self._max_num_seqs, vllm_version="stub")

    async def post(self, endpoint: str, body: bytes, *, priority: int = 0) -> Response:
        """Echo the prompt; see `Engine.post`."""
        await self.check(0)
        refused = refusal(endpoint, body, ENDPOINTS)
        if refused is not None:
            return refused
        fields = json.loads(body)
        words = _prompt(fields).split()
        max_tokens = fields.get("max_tokens") or DEFAULT_MAX_TOKENS
        await self._run(self._delay_s + self._token_delay_s * max_tokens)
        return self._answer(endpoint, words, max_tokens)

    async def check(self, timeout_s: float) -> None:
        """Raise EngineDied after `die`."""
        if self._death.is_set():
            raise EngineDied("the stub engine was told to die")

    def evidence(self) -> dict[str, Any]:
        """Return what it was told; see `Engine.evidence`."""
        return {"engine_args": ["stub"]}

    def stats(self) -> EngineStats:
        """Return what it counted; a step is an answer."""
        return EngineStats(
            running=self._running,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            steps=self._steps,
        )

    async def close(self) -> None:
        """Let what waits end as dead."""
        self.die()

    def die(self) -> None:
        """Fail every request in flight and to come with EngineDied, until the next start."""
        self._death.set()

    async def _run(self, duration_s: float) -> None:
        """Wait, but no longer than the engine lives."""
        if duration_s == 0:
            return
        self._running += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(duration_s):
                    await self._death.wait()
        finally:
            self._running -= 1
        await self.check(0)

    def _answer(self, endpoint: str, words: list[str], max_tokens: int) -> Response:
        text = " ".join(islice(cycle(words or ["empty"]), max_tokens))
        usage = {"prompt_tokens": len(words), "completion_tokens": max_tokens}
        usage["total_tokens"] = len(words) + max_tokens
        self._steps += 1
        self._prompt_tokens += len(words)
        self._output_tokens += max_tokens
        fields = _completion(endpoint, text) | {"model": MODEL, "created": 0, "usage": usage}
        return described(200, json.dumps(fields).encode(), fields)


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

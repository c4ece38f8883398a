"""End requests that run too long or only repeat themselves: the runaway guard.

Such a request ends with the text that it has so far. The guard checks all running requests once a
second, in the worker's process. vLLM's own repetition detection would compare at every token, in
the engine's loop.
"""

import asyncio
import time
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import structlog

from gristmill.worker.engine.interface import RunLimits
from gristmill.worker.engine.vllm.trace import Generation

log = structlog.get_logger(__name__)

CHECK_S = 1.0
"""Seconds between two checks of the running requests."""

MIN_REPEATS = 8
"""Least times that a pattern repeats in the span, so a pattern is at most an eighth of it."""


async def guard(engine: Any, generations: Iterable[Generation], limits: RunLimits) -> None:
    """Cut the requests that pass the limits, until this task is cancelled.

    The caller of a cut request gets the text so far.

    Args:
        engine: The AsyncLLM that generates.
        generations: The running calls of `generate`, which `trace.watch` keeps up to date.
        limits: Limits of a request.
    """
    while True:
        await asyncio.sleep(CHECK_S)
        for generation in list(generations):
            generation.cut = generation.cut or _limit_passed(engine, generation, limits)
            if generation.cut:
                log.warning("request.cut", engine_id=generation.request_id, limit=generation.cut)
                try:
                    await engine.abort(generation.request_id)
                except Exception:  # the supervisor's check finds out if the engine is dead
                    log.exception("request.cut_failed", engine_id=generation.request_id)


def is_repetition(token_ids: Sequence[int], span: int) -> bool:
    """Return whether the last `span` tokens repeat one pattern.

    Args:
        token_ids: All output tokens so far.
        span: Number of last tokens to compare.
    """
    if len(token_ids) < span:
        return False
    tail = array("q", token_ids[-span:])
    data, width = tail.tobytes(), tail.itemsize
    longest = span // MIN_REPEATS
    # If the tail repeats after p tokens, its beginning occurs again at token p.
    beginning = data[: (span - longest) * width]
    at = data.find(beginning, width)
    while at >= 0:
        if at % width == 0 and data[at:] == data[: len(data) - at]:
            return True
        at = data.find(beginning, at + 1)
    return False


def _limit_passed(engine: Any, generation: Generation, limits: RunLimits) -> str | None:
    if time.monotonic() - generation.started_at > limits.max_request_s:
        return "max_request_s"
    span = limits.max_repeated_tokens
    # A request with ignore_eos, such as a load test, wants length and may repeat itself.
    if span and not generation.ignores_end:
        states = _states(engine, generation.request_id)
        if any(is_repetition(state.detokenizer.output_token_ids, span) for state in states):
            return "max_repeated_tokens"
    return None


def _states(engine: Any, request_id: str) -> list[Any]:
    """Return vLLM's states of a running request, one for each of its `n` sequences.

    `OutputProcessor.external_req_ids` and `request_states` are the same in vLLM 0.24 to 0.33.
    """
    processor = engine.output_processor
    ids = processor.external_req_ids.get(request_id, ())
    states = (processor.request_states.get(internal_id) for internal_id in ids)
    return [state for state in states if state is not None and state.detokenizer is not None]

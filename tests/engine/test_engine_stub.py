"""Test that the stub gives predictable answers, schedules as vLLM does, and dies on demand."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.shared.errors import EngineDied
from gristmill.worker.engine import StubEngine
from gristmill.worker.engine.stub_batch import Sequence, StubBatch

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "one two"}], "max_tokens": 3}).encode()


async def test_stub_repeats_the_words_of_the_prompt() -> None:
    engine = StubEngine()
    info = await engine.start()
    response = await engine.post(CHAT, BODY)
    assert json.loads(response.body)["choices"][0]["message"]["content"] == "one two one"
    assert (response.prompt_tokens, response.output_tokens) == (2, 3)
    assert info.transport == "stub"
    assert engine.stats().output_tokens == 3


async def test_stub_fails_what_is_in_flight_when_it_dies_and_starts_anew() -> None:
    engine = StubEngine(token_delay_s=1000)
    await engine.start()
    posted = asyncio.create_task(engine.post(CHAT, BODY))
    while engine.stats().running == 0:
        await asyncio.sleep(0)
    engine.die()
    with pytest.raises(EngineDied):
        await posted
    with pytest.raises(EngineDied):
        await engine.check(1)
    assert engine.stats().running == 0
    await engine.start()
    await engine.check(1)


async def test_stub_refuses_a_stream_like_the_others() -> None:
    engine = StubEngine()
    await engine.start()
    assert (await engine.post(CHAT, b'{"stream": true}')).status == 400


def test_a_waiting_sequence_of_a_higher_priority_gets_the_next_seat() -> None:
    batch = StubBatch(1)
    for name, priority in enumerate((0, 0, 1, -1, 0)):
        batch.add(Sequence(name, 1, priority))
    assert [each.prompt_tokens for _ in range(5) for each in batch.step()] == [0, 3, 1, 4, 2]


async def test_stub_runs_no_more_than_it_has_seats_for() -> None:
    engine = StubEngine(token_delay_s=0.001, max_num_seqs=2)
    info = await engine.start()
    posts = [asyncio.create_task(engine.post(CHAT, BODY)) for _ in range(5)]
    while not engine.stats().waiting:
        await asyncio.sleep(0)
    posts.pop().cancel()
    assert engine.stats().running == info.max_num_seqs == 2
    await asyncio.gather(*posts)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.output_tokens) == (0, 0, 12)


def test_full_cache_pushes_the_newest_back() -> None:
    """Two requests of 4 + 6 tokens fill a cache of 14 at 7 each; then only the first runs on."""
    batch = StubBatch(max_num_seqs=8, kv_cache_tokens=14)
    first, second = Sequence(4, 6), Sequence(4, 6)
    batch.add(first)
    batch.add(second)
    for _ in range(3):
        assert batch.step() == []
    assert (batch.usage, batch.num_preemptions) == (1, 0)
    batch.step()
    assert (batch.num_running, batch.num_waiting, batch.num_preemptions) == (1, 1, 1)
    assert batch.step() == []
    assert batch.step() == [first]
    assert [batch.step() for _ in range(3)] == [[], [], [second]]
    assert batch.usage == 0


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=30),
    st.integers(1, 8),
    st.integers(1, 100),
)
def test_every_sequence_ends_whatever_the_cache(
    shapes: list[tuple[int, int]], max_num_seqs: int, kv_cache_tokens: int
) -> None:
    batch = StubBatch(max_num_seqs, kv_cache_tokens)
    for shape in shapes:
        batch.add(Sequence(*shape))
    num_ended = 0
    while batch.num_running:
        assert batch.num_running <= max_num_seqs
        assert batch.num_running == 1 or batch.num_cached_tokens <= kv_cache_tokens
        num_ended += len(batch.step())
    assert num_ended == len(shapes)
    assert (batch.num_waiting, batch.num_cached_tokens) == (0, 0)
    assert batch.num_output_tokens == sum(output for _, output in shapes)


async def test_stub_steps_on_when_a_request_is_aborted_in_the_turn_of_its_last_step() -> None:
    engine = StubEngine(token_delay_s=1000)
    await engine.start()
    two_steps = json.dumps({"prompt": "a", "max_tokens": 2}).encode()
    aborted, other = (
        asyncio.create_task(engine.post("/v1/completions", two_steps)) for _ in range(2)
    )
    while engine.stats().running < 2:
        await asyncio.sleep(0)
    steps = engine._steps
    assert steps is not None
    steps._step(0)
    aborted.cancel()
    steps._step(0)  # both end here, before the cancelled one has run
    await other
    assert aborted.cancelled() or aborted.cancelling()

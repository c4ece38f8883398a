"""What no live worker serves is refused at submit, and a look at the workers is shared by many submits."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from queues import end_lease

from gristmill.producer import Client
from gristmill.shared.connection import connect
from gristmill.shared.errors import NotServed
from gristmill.shared.queue import Queue
from gristmill.shared.queue_stats import Stats
from gristmill.shared.request import CHAT, COMPLETIONS, EMBEDDINGS, Request
from gristmill.shared.settings import QueueSettings


class CountingQueue(Queue):
    """Counts the looks."""

    num_looks = 0

    async def stats(self, *, is_stored: bool = False) -> Stats:
        self.num_looks += 1
        return await super().stats(is_stored=is_stored)


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[CountingQueue]:
    redis = connect(redis_url)
    yield CountingQueue(redis, f"test-{uuid4().hex[:12]}")
    await redis.aclose()


def asking_for(model: str | None, endpoint: str = COMPLETIONS) -> Request:
    body = {"prompt": "hi", "max_tokens": 1} | ({"model": model} if model else {})
    return Request.from_body(body, endpoint=endpoint)


async def serve(queue: Queue, worker: str, *models: str, endpoints: str = COMPLETIONS) -> None:
    await queue.register(worker, {"models": ",".join(models), "endpoints": endpoints})


async def test_a_model_that_nobody_serves_is_refused_by_name(queue: CountingQueue) -> None:
    await serve(queue, "w1", "base", "adapter")
    await serve(queue, "w2", "other")
    client = Client(queue=queue)
    with pytest.raises(NotServed) as refusal:
        await client.submit_many([asking_for("base"), asking_for("bsae")])
    assert refusal.value.code == "model_not_found"
    for part in (
        "'bsae'",
        queue.keys.queue,
        "adapter, base, other",
        "have the operator start a worker for it",
    ):
        assert part in str(refusal.value)
    assert (await queue.stats()).counters.get("queued", 0) == 1  # the one before it
    await client.submit_many([asking_for(model) for model in ("base", "adapter", "other", None)])


async def test_an_endpoint_that_nobody_serves_is_refused(queue: CountingQueue) -> None:
    paths = f"{EMBEDDINGS},/score,/v2/embed"  # no request may name the last one
    await serve(queue, "w", "embedder", endpoints=paths)
    with pytest.raises(NotServed, match=rf"serves {CHAT}; they serve /score, {EMBEDDINGS}\. "):
        await Client(queue=queue).submit({"messages": [{"role": "user", "content": "hi"}]})
    await Client(queue=queue).submit({"text_1": "a", "text_2": ["b"]}, endpoint="/score")


async def test_without_workers_or_without_facts_everything_is_taken(queue: CountingQueue) -> None:
    client = Client(queue=queue)
    await client.submit(asking_for("later"))
    await queue.register("says-nothing", {"host": "h"})
    await Client(queue=queue).submit(asking_for("later"))
    assert (await queue.stats()).counters["queued"] == 2


async def test_a_worker_whose_lease_has_ended_serves_nothing(queue: CountingQueue) -> None:
    await serve(queue, "dead", "old")
    await serve(queue, "alive", "new")
    await end_lease(queue, "dead")
    with pytest.raises(NotServed, match="they serve new"):
        await Client(queue=queue).submit(asking_for("old"))


async def test_many_submits_share_a_look_and_a_refusal_looks_anew(queue: CountingQueue) -> None:
    await serve(queue, "w1", "base")
    client = Client(queue=queue)
    for _ in range(50):
        await client.submit(asking_for("base"))
    assert queue.num_looks == 1
    await serve(queue, "w2", "newcomer")
    await client.submit(asking_for("newcomer"))
    assert queue.num_looks == 2


async def test_what_the_queue_knows_may_be_submitted_again(queue: CountingQueue) -> None:
    """A run that goes on asks for what it submitted when the fleet was another."""
    client, request = Client(queue=queue), asking_for("later")
    await client.submit(request)
    await serve(queue, "w", "base")
    assert await Client(queue=queue).submit(request) == request.id
    with pytest.raises(NotServed):
        await Client(queue=queue).submit(asking_for("later"))


async def test_the_check_can_be_left_out(queue: CountingQueue) -> None:
    await serve(queue, "w", "base")
    await Client(QueueSettings(check_models=False), queue=queue).submit(asking_for("later"))
    assert queue.num_looks == 0


@pytest.mark.parametrize(
    "facts", [{"max_model_len": "None"}, {"max_model_len": "1e5"}, {"models": b"m,\xff\xfe"}]
)
async def test_facts_that_cannot_be_read_stop_no_submit(
    queue: CountingQueue, facts: dict[str, str | bytes]
) -> None:
    await serve(queue, "w", "m")
    await queue.redis.hset(queue.keys.worker("w"), mapping=facts)  # type: ignore[arg-type]
    await Client(queue=queue).submit_many([asking_for("m")])
